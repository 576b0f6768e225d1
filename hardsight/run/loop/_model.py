"""Load a user's model, and find its preprocessing, its logits and its head on the data."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from hardsight._checks import first_line, warn
from hardsight.data import ExampleSource, applied_preprocessing, batches
from hardsight.data.pixels import PixelOptions, stated_preprocessing, wanted_preprocessing
from hardsight.data.source import Parts
from hardsight.data.texts import warn_of_other_words
from hardsight.errors import (
    AmbiguousHeadError,
    DataError,
    HardsightError,
    HeadError,
    ModelError,
    NonFiniteError,
    NotLogitsError,
    OptionError,
    ShapeError,
)
from hardsight.heads import (
    Head,
    PlacedRows,
    agree,
    call_model,
    examples_at_places,
    find_head,
    head_with_bias,
    logit_rows,
    logits_of,
    rows_at_places,
    unwrapped,
    verify_head,
    which_output,
)
from hardsight.models import ClassNames, LoadedModel, load_model, stored_tokenizer
from hardsight.preprocessing import Preprocessing
from hardsight.run.loop._pass import (
    borrowed,
    fed_in_its_dtype,
    moved,
    random_states_kept,
    seeded,
)
from hardsight.run.loop._processor import check_processor, warn_of_no_processor
from hardsight.run_folder import state_digest

Need = Literal["must", "may", "none"]
_MOST_TRIED = 256  # examples that are tried before the search for finite outputs is given up
# Differences, as shares of the largest logit, above which logits count as different: with another
# padding, which a mask hides completely, in float32; and in another batch, where half precision
# rounds differently.
_OTHER_PADDING = 1e-3
_OTHER_BATCH = 0.05
_SEES_PADDING = (
    "the logits of {} for a text depend on how far it is padded, although it takes a mask of the "
    "padding: only texts of the same length go through it together, which takes longer; use "
    "attention_mask in its forward pass"
)
_OTHER_THAN_THE_EXAMPLE = {
    "batch": (
        "the logits of {} for an example depend on the other examples of its batch, as with "
        "BatchNorm that has no running statistics or attention along the batch: its numbers change "
        "with the batch size and with the order of the examples; let it look at each example by "
        "itself, or compare only results of the same data and batch size"
    ),
    "draw": (
        "{} gives other logits for the same examples every time, as with dropout or noise that "
        "stays on in eval mode: its numbers change from run to run; turn it off, or take the mean "
        "of several runs"
    ),
}


def _refuse_untrained(loaded: LoadedModel) -> None:
    """Raise if weights of a model that should be trained were drawn at random.

    transformers gives any network a new head if it was stored without one, and only prints it.
    """
    if loaded.untrained:
        some = ", ".join(loaded.untrained[:4])
        more = f" and {len(loaded.untrained) - 4:,} more" if len(loaded.untrained) > 4 else ""
        raise ModelError(
            f"{loaded.spec} stores no {some}{more}: they would be random numbers, and so would all "
            "results; train it first (hardsight train gives it a head), name a model that was "
            "trained to classify, or pass its weights by weights= (--weights)"
        )


def loaded_model(
    model: Any,
    weights: str | os.PathLike[str] | None,
    num_classes: int | None,
    *,
    seed: int,
    device: torch.device,
    preprocessing: Preprocessing | None = None,
    is_stated: bool = False,
    trust_remote_code: bool = False,
    **factory: Any,
) -> LoadedModel:
    """Load the model that a user passes or names; random weights are drawn from ``seed``.

    Args:
        model: a module, or its name.
        weights: file with its weights.
        num_classes: passed to a factory that takes it.
        seed: seed of a model that is initialised at random.
        device: where the model will be.
        preprocessing: replaces the model's own, which is then not read.
        is_stated: whether the user states everything that matters, so that the model's own
            preprocessing need not be understood.
        trust_remote_code: whether to run Python files that an ``hf:`` model brings.
        factory: further keywords of :func:`hardsight.models.load_model`.

    Raises:
        OptionError: there is no model.
        ModelError: it cannot be built, or its preprocessing cannot be followed.
    """
    if not isinstance(model, str | nn.Module):
        came = "none" if model is None else type(model).__name__
        raise OptionError(
            f"images and texts need a model, got {came}; pass an nn.Module or a name such as "
            "file.py:factory (--model), or train one first: hardsight train recipe.toml"
        )

    def load(how: Preprocessing | None) -> LoadedModel:
        # a factory may draw its weights at random
        with seeded(seed, device):
            return load_model(
                model,
                weights=weights,
                num_classes=num_classes,
                preprocessing=how,
                trust_remote_code=trust_remote_code,
                **factory,
            )

    try:
        loaded = load(preprocessing)
        how = loaded.preprocessing
        if how is not None and loaded.processor is not None:
            check_processor(loaded.processor, how)
        # compare only with a processor of transformers; run folders store our own preprocessing
        elif (
            how is not None and not is_stated and how.origin == f"image processor of {loaded.spec}"
        ):
            warn_of_no_processor(how)
    except ModelError:
        # an unreadable preprocessing does not matter to a user who states everything
        if preprocessing is not None or not is_stated:
            raise
        return load(Preprocessing(origin="default: the model's own cannot be followed"))
    return loaded


@dataclass(frozen=True)
class ModelTraits:
    """Properties of a model that its first outputs show.

    Attributes:
        head: its classifier layer, verified; ``None`` if it has none.
        num_classes: number of columns of its logits.
        shape: shape of one input, ``[C, H, W]`` for images; ``None`` if inputs are not one tensor.
        output: the part of its output that holds the logits; ``None`` for a bare tensor.
        no_head: why there is no head.
        rows_depend_on: what else an example's logits depend on: the other examples of its
            ``batch``, or a random ``draw``; ``None`` for a model that treats each one by itself.
        sees_padding: whether its logits depend on how far an example is padded.
    """

    head: Head | None
    num_classes: int
    shape: tuple[int, ...] | None
    output: int | str | None = None
    no_head: str | None = None
    rows_depend_on: Literal["batch", "draw"] | None = None
    sees_padding: bool = False


def model_traits(
    model: nn.Module,
    source: ExampleSource,
    preprocessing: Preprocessing,
    *,
    device: torch.device,
    head: str | Head | None,
    output: int | str | None = None,
    num_classes: int | None = None,
    need: Need = "must",
    at_once: int = 8,
) -> ModelTraits:
    """Find out from the first examples which output and which layer make the logits.

    Examples that cannot be read or have no finite output are skipped, since they cannot show it.

    Args:
        model: the model on ``device``.
        source: source of the examples.
        preprocessing: preprocessing of images.
        device: where the model is.
        head: its name, or a Head that is checked against the model; ``None`` to find it.
        output: the part of the model's output that holds the logits; ``None`` to choose it by the
            number of classes.
        num_classes: number of classes of the model if it names them, else of the data.
        need: whether the model must have a head, may have one, or needs none. In any case a model
            that returns probabilities is refused.
        at_once: how many examples to try at a time.

    Raises:
        HeadError: there is no head, or more than one.
        ModelError: no example could be read, or several outputs could be the logits.
        NonFiniteError: none of the first few hundred examples has a finite output.
    """
    question = _Question(model, head, output, num_classes or len(source.classes) or None, need)
    seen, headless = 0, None
    with closing(batches(source, preprocessing, batch_size=at_once)) as few:
        for batch in few:
            if not len(batch.index):
                continue
            seen += batch.examples
            inputs, count = _together(batch.inputs, batch.examples)
            inputs = moved(inputs, device)
            # try again with the finite rows only, if the whole batch gives no answer
            traits = question.answer(inputs) or question.answer(question.finite_rows(inputs))
            if traits is not None:
                # on the same batch, since it is on the device already
                two = None if source.kind is None else source.kind.padded_twice(inputs)
                # Two passes rule out both faults at once. Each is tested only if the passes differ.
                if two is not None and _alone_alike(model, *two, count, device, traits.output):
                    return traits
                other = _rows_depend_on(model, inputs, count, device, traits.output)
                sees = other is None and two is not None and _differs(model, *two, traits.output)
                return dataclasses.replace(traits, rows_depend_on=other, sees_padding=sees)
            headless = headless or question.answer_of_logits(inputs)
            # a dataset that starts with broken examples must not be read to its end
            if seen >= _MOST_TRIED:
                break
    if not seen:
        raise ModelError(f"none of the examples of {source.spec} could be read")
    if headless is not None:
        return headless
    raise NonFiniteError(
        f"{type(model).__name__} has no finite output for any of the first {seen:,} examples of "
        f"{source.spec}, so its head cannot be verified; check its weights, and mean and std of "
        "its inputs"
    )


def _together(inputs: Any, count: int) -> tuple[Any, int]:
    """Return the largest part of a batch that runs at once, and its number of examples.

    Examples of different lengths may be in separate parts.
    """
    if not isinstance(inputs, Parts):
        return inputs, count
    # texts come in parts by length, and the part with the most examples shows the most
    sizes = [len(next(iter(tree_leaves(part)))) for part in inputs.inputs]
    largest = max(range(len(sizes)), key=sizes.__getitem__)
    return inputs.inputs[largest], sizes[largest]


@dataclass(frozen=True)
class _Question:
    """Tries a model batch by batch, until one shows its traits."""

    model: nn.Module
    head: str | Head | None
    output: int | str | None
    num_classes: int | None
    need: Need

    def answer(self, inputs: Any) -> ModelTraits | None:
        """Return the traits that a batch shows, or ``None`` if no output is finite."""
        if inputs is None:
            return None
        try:
            head = self._head(inputs)
        except NonFiniteError as err:
            # only logits are needed, so there is no search for a head
            return self._without_head(inputs, err) if self.need == "none" else None
        except HeadError as err:
            if not self._may_go_without(err):
                raise
            return self._without_head(inputs, err)
        assert head.reading is not None
        # without the output: returning() makes the model return the logits alone
        plain = dataclasses.replace(head.reading, output=None)
        whole = dataclasses.replace(head, reading=plain)
        return ModelTraits(whole, head.num_classes, _shape(inputs), head.reading.output)

    @torch.inference_mode()
    def answer_of_logits(self, inputs: Any) -> ModelTraits | None:
        """Return the traits, without a head, of logits with minus infinity for some classes."""
        if self.need != "may" or self.head is not None:
            return None
        if not bool(torch.isfinite(self._logits(inputs)[1].amax(dim=1)).any()):
            return None
        name = type(self.model).__name__
        why = f"the logits of {name} are not all finite for any example, so its head is not known"
        return self._without_head(inputs, NonFiniteError(why))

    @torch.inference_mode()
    def finite_rows(self, inputs: Any) -> Tensor | None:
        """Return the inputs with finite logits, or ``None`` without any or without one tensor."""
        if not isinstance(inputs, Tensor):
            return None
        rows = inputs[torch.isfinite(self._logits(inputs)[1]).all(dim=1)]
        return rows if len(rows) else None

    def _head(self, inputs: Any) -> Head:
        options: dict[str, Any] = {"output": self.output, "num_classes": self.num_classes}
        if isinstance(self.head, Head):
            return verify_head(self.model, self.head, inputs, **options)
        return find_head(self.model, inputs, name=self.head, **options)

    def _may_go_without(self, err: HeadError) -> bool:
        if isinstance(err, NotLogitsError):  # log-probabilities have the same softmax as the logits
            return self.need == "none" and err.function == "log_softmax"
        if self.need == "may":  # unless the user named a head, or could choose among several
            return self.head is None and not isinstance(err, AmbiguousHeadError)
        return self.need == "none"

    @torch.inference_mode()
    def _without_head(self, inputs: Any, why: HardsightError) -> ModelTraits:
        output, logits = self._logits(inputs)
        if isinstance(inputs, Tensor) and len(logits) == logits.shape[1] > 1:
            # With as many examples as classes, rows and columns cannot be told apart, so it is run
            # with one example less.
            self._logits(inputs[1:])
        _check_logits(logits, type(self.model).__name__)
        return ModelTraits(None, logits.shape[1], _shape(inputs), output, str(why))

    def _logits(self, inputs: Any) -> tuple[int | str | None, Tensor]:
        returned = call_model(self.model, inputs)
        output = which_output(returned, num_classes=self.num_classes, which=self.output)
        logits = logit_rows(returned, output)
        if isinstance(inputs, Tensor) and len(logits) != len(inputs):
            raise ShapeError(
                f"expected one row of logits per example, got {list(logits.shape)} for "
                f"{len(inputs)} examples of {type(self.model).__name__}"
            )
        return output, logits


def _rows_depend_on(
    model: nn.Module, inputs: Any, count: int, device: torch.device, output: int | str | None
) -> Literal["batch", "draw"] | None:
    """Return what an example's logits depend on besides the example; see :class:`ModelTraits`.

    The second half of the examples is run again by itself, in reverse order. A smaller batch rounds
    differently, but by far less than ``_OTHER_BATCH``. The same batch rounds the same way when it
    is run twice, so random draws show at much smaller differences.

    Args:
        model: the model on ``device``.
        inputs: inputs of a batch, on ``device``.
        count: number of examples in the batch.
        device: where the model is.
        output: the part of the model's output that holds the logits.
    """
    half = _half_of(count)
    part, own = _rows_of(inputs, count, half)

    def logits(some: Any) -> Tensor:
        some = tree_map_only(Tensor, torch.clone, some)  # a model may change its inputs in place
        rows = logit_rows(call_model(unwrapped(model), some), output).float()
        # entries that are not finite compare as equal
        return torch.where(torch.isfinite(rows), rows, 0)

    try:
        with (
            random_states_kept(device),
            torch.inference_mode(),
            torch.compiler.set_stance("force_eager"),  # a compiled model would compile other sizes
        ):
            whole = logits(inputs)
            alone = None if part is None else logits(part)
            # if both agree, nothing is drawn and no other example matters
            if alone is not None and (len(alone) != len(own) or agree(whole[own], alone)):
                return None
            # if even the same batch gives other logits, the model draws at random
            if not agree(whole, logits(inputs)):
                return "draw"
            # with the wider tolerance, since half precision rounds differently in smaller batches
            is_apart = alone is not None and not agree(whole[own], alone, _OTHER_BATCH)
            return "batch" if is_apart else None
    except (Exception, SystemExit) as err:  # the whole batch worked before, so the half is at fault
        warn(
            "it could not be checked whether the logits of "
            f"{type(unwrapped(model)).__name__} for an example depend on the other examples of its "
            f"batch: it fails on {len(half)} of {count} examples by themselves ({first_line(err)})"
        )
        return None


def _half_of(count: int) -> list[int]:
    """Return the second half of the examples, reversed so that effects of the order show too."""
    return list(range(count - 1, count // 2 - 1, -1)) if count > 1 else []


def _alone_alike(
    model: nn.Module,
    short: Any,
    padded: Any,
    count: int,
    device: torch.device,
    output: int | str | None,
) -> bool:
    """Return whether half of a batch, with other padding, gets the same logits as in the batch.

    If so, an example's logits depend neither on the other examples nor on padding.
    """
    part, own = _rows_of(padded, count, _half_of(count))
    if part is None:
        return False
    try:
        with (
            random_states_kept(device),
            torch.inference_mode(),
            torch.compiler.set_stance("force_eager"),
        ):
            whole, alone = (
                logit_rows(call_model(unwrapped(model), some), output).float()
                for some in (short, part)
            )
            return agree(torch.where(torch.isfinite(whole), whole, 0)[own], alone)
    except (Exception, SystemExit):  # the separate tests that follow report what is wrong
        return False


@torch.inference_mode()
def _differs(model: nn.Module, inputs: Any, others: Any, output: int | str | None) -> bool:
    """Return whether a model gives different logits for two equivalent inputs."""
    with torch.compiler.set_stance("force_eager"):
        one, other = (
            logit_rows(call_model(unwrapped(model), some), output) for some in (inputs, others)
        )
    is_short = one.dtype in (torch.float16, torch.bfloat16)
    return not agree(one.float(), other.float(), _OTHER_BATCH if is_short else _OTHER_PADDING)


def _rows_of(inputs: Any, count: int, rows: list[int]) -> tuple[Any, list[int]]:
    """Return some examples of a batch, and the numbers of their rows of logits.

    The examples are ``None`` if the batch cannot be split by example.
    """
    inputs = dict(inputs) if isinstance(inputs, Mapping) else inputs
    placed = examples_at_places(inputs, rows) if isinstance(inputs, dict) and rows else None
    if placed is not None:
        return placed
    leaves = tree_leaves(inputs)
    are_rows = [isinstance(leaf, Tensor) and leaf.ndim > 0 for leaf in leaves]
    plain = int | float | str | None
    if not rows or not any(are_rows):
        return None, rows
    for leaf, is_rows in zip(leaves, are_rows, strict=True):
        # a value that is neither per example nor a plain setting cannot be split
        if len(leaf) != count if is_rows else not isinstance(leaf, plain):
            return None, rows
    return tree_map_only(Tensor, lambda leaf: leaf[rows] if leaf.ndim else leaf, inputs), rows


def _shape(inputs: Any) -> tuple[int, ...] | None:
    """Return the shape of one input, or ``None`` if inputs are not one tensor."""
    return tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) else None


@dataclass(frozen=True)
class ModelAtWork:
    """A model that is ready for a pass over data.

    Attributes:
        loaded: the model as it was loaded.
        network: the network on its device, in eval mode.
        preprocessing: how it expects images to be prepared, overridden by the user's own values.
        class_names: names of its outputs, as stated by the user, or else by the model.
        traits: properties that the first examples show.
        source: the data, read as the model expects it.
        placed: for a language model, captures what enters its head at the tokens that have a row.
    """

    loaded: LoadedModel
    network: nn.Module
    preprocessing: Preprocessing
    class_names: ClassNames
    traits: ModelTraits
    source: ExampleSource
    placed: PlacedRows | None = None

    def applied_to(self, source: ExampleSource) -> Preprocessing:
        """Return the preprocessing of a source's examples, for the record.

        Warns of pictures if nothing says how the model wants them prepared.
        """
        if source.kind is not None:
            return Preprocessing(origin=source.kind.origin)
        done = applied_preprocessing(source, self.preprocessing)
        # a user's own arrays are used as they are and need no warning
        are_pictures = done is self.preprocessing
        is_stated = not {"mean", "std"}.isdisjoint(done.stated)
        if self.loaded.preprocessing is None and are_pictures and not is_stated:
            warn(
                f"nothing says what {type(self.loaded.model).__name__} wants done to pictures: "
                "their pixels are divided by white and not normalised; pass mean= and std= "
                "(--mean, --std), or --mean 0 --std 1 if that is right"
            )
        return done

    def facts(self) -> dict[str, Any]:
        """Return facts for the metadata of a result."""
        other = self.traits.rows_depend_on
        return {
            "spec": self.loaded.spec,
            "weights": self.loaded.weights_origin,
            "weights_digest": self.loaded.weights_digest,
            "digest": state_digest(self.network),
            "head": None if self.traits.head is None else self.traits.head.name,
            "output": self.traits.output,
            **({} if other is None else {"rows_depend_on": other}),
        }


@contextmanager
def model_at_work(
    model: Any,
    source: ExampleSource,
    pixels: PixelOptions,
    *,
    device: torch.device,
    weights: str | os.PathLike[str] | None,
    preprocessing: Preprocessing | None,
    class_names: ClassNames | None,
    head: str | Head | None,
    output: int | str | None,
    need: Need = "must",
    at_once: int = 8,
    reader: Any = None,
    batch_size: int | None = None,
    **loading: Any,
) -> Iterator[ModelAtWork]:
    """Load a model and prepare it for a pass over ``source``; restore a user's module afterwards.

    Args:
        model: a module, or its name.
        source: the data to run it on.
        pixels: what the user states about its inputs.
        device: to run on.
        weights: file with its weights.
        preprocessing: replaces the model's own.
        class_names: of its outputs, replacing the model's own.
        head: name of the classifier layer, or a Head; ``None`` to find it.
        output: the part of its output that holds the logits; ``None`` to choose it.
        need: whether there must be a head, see :func:`model_traits`.
        at_once: how many examples to find the head on.
        reader: makes inputs of examples that are not pictures, such as a tokenizer; the model's
            own by default.
        batch_size: examples at once, set only by verbs that read other examples than pictures.
        loading: further options of :func:`loaded_model`.

    Raises:
        DataError: the examples are of a kind that the verb does not read.
    """
    if source.kind is not None and batch_size is None:
        raise DataError(
            f"{source.spec} holds examples of the kind {source.kind.name!r}, which `score`, "
            "`train`, `evaluate` and `queue` read; this command needs pictures or arrays"
        )
    with ExitStack() as stack:
        # only a user's own module has a state to restore
        if isinstance(model, nn.Module):
            stack.enter_context(borrowed(model, device))
        loaded = loaded_model(
            model,
            weights,
            device=device,
            preprocessing=stated_preprocessing(preprocessing),
            is_stated=pixels.are_complete,
            task="classify" if source.kind is None else source.kind.task,
            **loading,
        )
        _refuse_untrained(loaded)
        stack.enter_context(fed_in_its_dtype(loaded.model))
        # a borrowed module is on the device already
        network = loaded.model if isinstance(model, nn.Module) else loaded.model.to(device)
        how = wanted_preprocessing(loaded.preprocessing or Preprocessing(), pixels)
        if source.kind is not None and batch_size is not None:
            used = loaded.tokenizer if reader is None else reader
            warn_of_other_words(used, loaded.tokenizer)
            kind = source.kind.read_for(unwrapped(network), used, batch_size=batch_size)
            source = source.of_kind(kind)
        names, placed = class_names or loaded.class_names, None
        if source.kind is not None and source.kind.task == "predict":
            placed = stack.enter_context(rows_at_places(network, head))
            # its classes are the vocabulary; the two that a config of transformers states by
            # default are not the model's own
            names = ClassNames(tuple(source.classes), "the tokenizer")
            head = head or head_with_bias(network, placed.name)
        first = source
        if source.kind is not None:  # with one example at a time, there may be too few for a head
            first = source.of_kind(source.kind.at_once(at_once))
        traits = model_traits(
            network,
            first,
            how,
            device=device,
            head=head,
            output=output,
            num_classes=len(names.names) or len(source.classes),
            need=need,
            at_once=at_once,
        )
        if traits.rows_depend_on is not None:
            called = type(unwrapped(network)).__name__
            warn(_OTHER_THAN_THE_EXAMPLE[traits.rows_depend_on].format(called))
        if traits.sees_padding and source.kind is not None:
            warn(_SEES_PADDING.format(type(unwrapped(network)).__name__))
            source = source.of_kind(source.kind.without_padding())
        stack.enter_context(returning(network, traits.output))
        yield ModelAtWork(loaded, network, how, names, traits, source, placed)


def read_tokenizer(tokenizer: Any, trust_remote_code: bool) -> Any:
    """Return a tokenizer that is passed as an object or loaded from its folder.

    Raises:
        OptionError: the folder has no tokenizer.
    """
    if not isinstance(tokenizer, str | os.PathLike):
        return tokenizer
    loaded = stored_tokenizer(os.fspath(tokenizer), trust_remote_code=trust_remote_code)
    if loaded is None:
        raise OptionError(f"no tokenizer in {tokenizer}: expected files from save_pretrained()")
    return loaded


@contextmanager
def returning(model: nn.Module, output: int | str | None) -> Iterator[None]:
    """Make a model with several outputs return the logits alone inside the block.

    Args:
        model: the model to change inside the block.
        output: as in :class:`ModelTraits`; ``None`` leaves the model as it is.
    """
    if output is None:
        yield
        return

    def chosen(_module: nn.Module, _args: Any, returned: Any) -> Tensor:
        # a wrapper gets a bare tensor, because the hook on the inner model has chosen already
        return returned if isinstance(returned, Tensor) else logits_of(returned, output)

    # Hooks on both: code that was compiled earlier only calls the wrapper's hook, and capture only
    # the inner one's. Keyed by identity, because without a wrapper both are the same module.
    parts = {id(part): part for part in (model, unwrapped(model))}
    handles = [part.register_forward_hook(chosen) for part in parts.values()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _check_logits(outputs: Tensor, model: str) -> None:
    """Raise if outputs are probabilities; without a search for a head nothing else would notice."""
    sums = outputs.float().sum(dim=1)
    # logits are hardly ever all non-negative with a sum of 1 in every row
    if bool((outputs >= 0).all()) and bool(((sums - 1).abs() < 1e-3).all()):
        raise ModelError(
            f"{model} returns probabilities: no output is negative, and they sum to 1 for every "
            "example; remove the softmax from its forward pass"
        )
