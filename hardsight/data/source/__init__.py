"""What a source of examples is, and what every one needs: views, labels, fingerprints."""

from hardsight.data.source._contents import add_sample as add_sample
from hardsight.data.source._contents import content_digest as content_digest
from hardsight.data.source._contents import states_kept as states_kept
from hardsight.data.source._contents import stream_digest as stream_digest
from hardsight.data.source._labels import are_names as are_names
from hardsight.data.source._labels import check_range as check_range
from hardsight.data.source._labels import class_indices as class_indices
from hardsight.data.source._labels import class_names as class_names
from hardsight.data.source._labels import single_class_index as single_class_index
from hardsight.data.source._source import HUMAN_COUNTS as HUMAN_COUNTS
from hardsight.data.source._source import Example as Example
from hardsight.data.source._source import ExampleSource as ExampleSource
from hardsight.data.source._source import Fingerprint as Fingerprint
from hardsight.data.source._source import Loading as Loading
from hardsight.data.source._source import check_lengths as check_lengths
from hardsight.data.source._source import check_listable as check_listable
from hardsight.data.source._source import evenly_spaced as evenly_spaced
from hardsight.data.source._source import existing as existing
from hardsight.data.source._source import id_at as id_at
from hardsight.data.source._source import in_memory as in_memory
from hardsight.data.source._source import is_pattern as is_pattern
from hardsight.data.source._source import is_regular as is_regular
from hardsight.data.source._source import matching as matching
from hardsight.data.source._view import SourceView as SourceView
