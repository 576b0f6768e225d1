"""Write a run in the format of another tool, with a module per tool."""

from hardsight.exchange.tools._argilla import write_argilla as write_argilla
from hardsight.exchange.tools._cleanlab import write_cleanlab as write_cleanlab
from hardsight.exchange.tools._csv import write_csv as write_csv
from hardsight.exchange.tools._fiftyone import write_fiftyone as write_fiftyone
from hardsight.exchange.tools._huggingface import write_huggingface as write_huggingface
from hardsight.exchange.tools._labelstudio import write_labelstudio as write_labelstudio
from hardsight.exchange.tools._rows import HERE as HERE
from hardsight.exchange.tools._rows import HERE_WHOLE as HERE_WHOLE
from hardsight.exchange.tools._rows import Pictures as Pictures
from hardsight.exchange.tools._rows import RunRows as RunRows
