"""Acting by hardness: what to keep, what to learn first, what to label next, whom a model fails."""

from hardsight.experiments.acting._active import active as active
from hardsight.experiments.acting._curriculum import curriculum as curriculum
from hardsight.experiments.acting._few_labels import few_labels as few_labels
from hardsight.experiments.acting._few_labels import labelled_rows as labelled_rows
from hardsight.experiments.acting._groups import groups as groups
from hardsight.experiments.acting._pruning import pruning as pruning
