"""Every error hardsight raises on purpose.

Each type derives from :class:`HardsightError` and from the builtin a caller would catch anyway.
A message says what was expected, what came, and the next step.
"""


class HardsightError(Exception):
    """Base of every error hardsight raises on purpose."""


class ShapeError(HardsightError, ValueError):
    """Shapes of tensors or arrays do not fit each other."""


class TensorError(HardsightError, TypeError):
    """An argument is an array, a list or something else, but must be a tensor."""


class LabelError(HardsightError, ValueError):
    """A label is outside ``[0, C)`` or is not an integer."""


class OptionError(HardsightError, ValueError):
    """An option has a value outside its range."""


class ConfigError(HardsightError, ValueError):
    """A configuration file or override cannot be used."""


class UnknownNameError(HardsightError, KeyError):
    """A name is not in its registry."""

    __str__ = Exception.__str__  # a KeyError would quote the message


class NonFiniteError(HardsightError, ArithmeticError):
    """A value that must be finite is NaN or infinite."""


class GradientError(HardsightError, RuntimeError):
    """An operation does not have the gradient that was requested."""


class ProbabilityError(HardsightError, ValueError):
    """Probabilities are negative or do not sum to 1."""


class StatisticError(HardsightError, ValueError):
    """A statistic is not defined for its input: too few values, or values that are all equal."""


class OutOfMemoryError(HardsightError, MemoryError):
    """A batch does not fit into the memory of the device; a smaller one may."""


class HeadError(HardsightError, ValueError):
    """The classifier head of a model cannot be used."""


class HeadNotFoundError(HeadError):
    """No linear layer of the model produces its logits."""


class UnknownLayerError(HeadNotFoundError, UnknownNameError):
    """The model has no layer of the name that was given."""


class AmbiguousHeadError(HeadError):
    """More than one layer could be the classifier head."""


class HeadMismatchError(HeadError):
    """Captured features times the head's weights do not give the model's logits."""


class NotLogitsError(HeadMismatchError):
    """The model returns probabilities, or another function of its logits.

    Attributes:
        function: its name, such as ``"sigmoid"``.
    """

    function = ""


class ModelError(HardsightError, ValueError):
    """A model cannot be built, loaded or run."""


class UnknownModelError(ModelError, UnknownNameError):
    """A model name is unknown or ambiguous, or its factory does not have an option."""


class UnsafeFileError(HardsightError, ValueError):
    """A file would have to run code to be loaded."""


class DataError(HardsightError, ValueError):
    """A dataset cannot be used as given."""


class MissingDataError(DataError, FileNotFoundError):
    """A path or dataset named by the user does not exist."""


class UnknownPartError(DataError, UnknownNameError):
    """Data has no split or column of the name that was given."""


class NoClassFoldersError(DataError):
    """Images are directly in a folder and not in class folders, so their class is unknown."""


class BadExampleError(DataError):
    """An example cannot be read; a run skips it unless the run is strict."""


class TableError(HardsightError, ValueError):
    """A score table cannot be read or lacks a column."""


class UnknownColumnError(TableError, UnknownNameError):
    """A score table has no column or score of the name that was given."""


class PatchError(HardsightError, ValueError):
    """A patch cannot be read, contradicts itself, or belongs to other data."""


class RunExistsError(HardsightError, FileExistsError):
    """The output folder holds a run that would be overwritten."""


class RunLockedError(HardsightError, BlockingIOError):
    """Another process is writing to the output folder."""


class RunMismatchError(HardsightError, ValueError):
    """A run that should be continued has different data, another model or different settings."""


class CheckpointError(HardsightError, RuntimeError):
    """A training run cannot be continued, because its checkpoints cannot be read."""


class OutputError(HardsightError, OSError):
    """A result could not be written."""


class EngineError(HardsightError, RuntimeError):
    """A cluster cannot be reached, or stopped before all of its work was done."""


class MissingExtraError(HardsightError, ImportError):
    """An optional dependency is not installed or does not import."""


class HardsightWarning(UserWarning):
    """Something the user should know about a run that continues anyway."""
