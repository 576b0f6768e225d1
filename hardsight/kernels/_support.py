"""Checks of inputs for the kernels, and block sizes for their launches."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import shutil
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from hardsight._checks import check_rows, check_width, require, warn
from hardsight.errors import GradientError, MissingExtraError, OptionError, ShapeError
from hardsight.geometry import common_dtype, widen_together

LEAST_TRITON = (3, 6)  # older ones cannot compile the Hopper kernels; the interpreter of 3.2 aborts


def installed_triton() -> tuple[int, ...] | None:
    """Return the release of Triton without importing it; ``None`` if it is not installed.

    A copy without a known release, such as one built from source, counts as new.
    """
    if importlib.util.find_spec("triton") is None:
        return None
    for package in ("triton", "pytorch-triton", "pytorch-triton-rocm", "pytorch-triton-xpu"):
        try:
            release = importlib.metadata.version(package).split(".")[:2]
        except importlib.metadata.PackageNotFoundError:
            continue
        return tuple(int(part) for part in release)
    return LEAST_TRITON


# looked up once at import, because a look-up cannot be traced
_IS_TRITON_USABLE = (installed_triton() or (0,)) >= LEAST_TRITON
# Triton builds a launcher for its first kernel, with a compiler that it looks for in the same way
_COMPILER_FOUND = any((os.environ.get("CC"), shutil.which("gcc"), shutil.which("clang")))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CHUNK_BYTES = 48 << 20  # of slopes at once in a backward pass
GROUP = 128  # rows whose labels are marked together
RESIDENT = 512  # width up to which the Hopper kernels keep a block of rows in shared memory


def is_supported(embeddings: Tensor, class_weights: Tensor) -> bool:
    """Whether the fused kernels can process these tensors on this machine.

    They need Triton 3.6 or newer, a GPU and a C compiler (or Triton's interpreter,
    ``TRITON_INTERPRET=1``), and both tensors in the same one of float32, bfloat16 and float16.

    Args:
        embeddings: ``[N, D]``.
        class_weights: ``[C, D]``.

    Example:
        >>> is_supported(torch.ones(2, 3).double(), torch.ones(4, 3).double())
        False
    """
    return embeddings.dtype == class_weights.dtype and is_fusible(embeddings, class_weights)


def is_fusible(embeddings: Tensor, class_weights: Tensor) -> bool:
    """Whether the kernels can take these tensors after :func:`fused_inputs` made them one dtype.

    Args:
        embeddings: ``[N, D]``.
        class_weights: ``[C, D]``; the check copies nothing.

    Example:
        >>> is_fusible(torch.ones(2, 3).double(), torch.ones(4, 3))
        False
    """
    dtype = embeddings.dtype
    if dtype != class_weights.dtype:
        dtype = common_dtype(embeddings, class_weights)
    return (
        dtype in DTYPES
        and embeddings.device == class_weights.device
        and (is_interpreted() or (embeddings.is_cuda and _COMPILER_FOUND))
        and embeddings.numel() > 0
        and class_weights.numel() > 0
        and _IS_TRITON_USABLE
    )


def fused_inputs(embeddings: Tensor, class_weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return both tensors in the same dtype for the kernels; mixed ones are widened."""
    if embeddings.dtype == class_weights.dtype:
        return embeddings, class_weights
    return widen_together(embeddings, class_weights)


def autocast_dtype(tensor: Tensor) -> torch.dtype | None:
    """Return the dtype of products under ``torch.autocast`` on a tensor's device, or ``None``.

    Example:
        >>> with torch.autocast("cpu", dtype=torch.bfloat16):
        ...     autocast_dtype(torch.ones(1))
        torch.bfloat16
    """
    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def linear_inputs(embeddings: Tensor, class_weights: Tensor) -> tuple[Tensor, Tensor]:
    """Cast both tensors as ``torch.nn.functional.linear`` does, under autocast to its dtype.

    The casts are differentiable, so each gradient comes back in the dtype of its own tensor.
    float64 is unchanged, as in torch.

    Args:
        embeddings: ``[N, D]``.
        class_weights: ``[C, D]``; often float32 master weights next to rounded embeddings.
    """
    dtype = autocast_dtype(embeddings)
    if dtype is None or torch.float64 in (embeddings.dtype, class_weights.dtype):
        return embeddings, class_weights
    return embeddings.to(dtype), class_weights.to(dtype)


@functools.cache
def tell_of_mixed_dtypes(embeddings: torch.dtype, class_weights: torch.dtype) -> None:
    """Warn, once for each pair of dtypes, that mixing them is slow."""
    narrow = embeddings if embeddings.itemsize < class_weights.itemsize else class_weights
    warn(
        f"a linear loss has embeddings in {embeddings} and class_weights in {class_weights}, which "
        f"are widened to the wider one: on a GPU that takes about ten times as long as all of it "
        f"in {narrow}; call the loss inside torch.autocast, as the model is, or cast both to "
        f"{narrow}"
    )


def check_inputs(
    embeddings: Tensor, labels: Tensor, class_weights: Tensor, bias: Tensor | None = None
) -> None:
    """Raise unless the tensors fit each other and the kernels."""
    check_width(embeddings, class_weights)
    check_rows(embeddings=embeddings, labels=labels)
    if labels.ndim != 1:
        raise ShapeError(f"expected labels to have 1 dimension, got {list(labels.shape)}")
    if bias is not None and bias.shape != class_weights.shape[:1]:
        raise ShapeError(
            "expected one bias per class, got "
            f"bias {list(bias.shape)}, class_weights {list(class_weights.shape)}"
        )
    if embeddings.numel() == 0 or class_weights.numel() == 0:
        raise ShapeError(
            "expected at least one example, one class and one feature, got "
            f"embeddings {list(embeddings.shape)}, class_weights {list(class_weights.shape)}"
        )
    if embeddings.dtype not in DTYPES or class_weights.dtype != embeddings.dtype:
        raise OptionError(
            "expected embeddings and class_weights both in float32, bfloat16 or float16, got "
            f"{embeddings.dtype} and {class_weights.dtype}; cast them or pass impl='torch'"
        )
    if not (embeddings.is_cuda or is_interpreted()):
        raise OptionError(
            f"expected tensors on a CUDA device, got {embeddings.device}; pass impl='torch'"
        )
    others = {"labels": labels, "class_weights": class_weights, "bias": bias}
    for name, tensor in others.items():
        if tensor is not None and tensor.device != embeddings.device:
            raise OptionError(
                f"expected all tensors on one device, got embeddings on {embeddings.device}, "
                f"{name} on {tensor.device}; move them with .to()"
            )
    if not torch.compiler.is_compiling():  # imports cannot be traced
        require_triton()


def require_triton() -> None:
    """Raise if Triton is missing, or too old for the kernels.

    Raises:
        MissingExtraError: the message says how to install it.
    """
    require("triton", extra="kernels", feature="a fused kernel")
    if not _IS_TRITON_USABLE:
        release = ".".join(str(part) for part in installed_triton() or ())
        raise MissingExtraError(
            f"a fused kernel needs Triton 3.6 or newer, got {release}: pip install "
            "'hardsight[kernels]' brings it with the torch it belongs to; or pass impl='torch'"
        )


def check_reverse_mode(*tensors: Tensor | None) -> None:
    """Raise if the gradient would be lost, since the kernels have one only for ``backward``."""
    if torch.compiler.is_compiling():  # the check cannot be traced
        return
    if any(tensor is not None and _is_transformed_gradient(tensor) for tensor in tensors):
        raise GradientError(
            "the fused kernels have no derivative under torch.func or in forward mode; "
            "pass impl='torch'"
        )


def _is_transformed_gradient(tensor: Tensor) -> bool:
    functorch = torch._C._functorch
    # vmap wraps tensors as well, but is allowed
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_gradtrackingtensor(tensor):
            return True
        tensor = functorch.get_unwrapped(tensor)
    return unpack_dual(tensor).tangent is not None


def is_interpreted() -> bool:
    """Whether Triton interprets kernels, which then run on a CPU."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on")


@dataclass(frozen=True)
class Tiles:
    """Block sizes of one launch."""

    rows: int
    classes: int
    depth: int
    num_warps: int
    num_stages: int

    @property
    def options(self) -> dict[str, int]:
        """Return keyword arguments for the tiled kernels."""
        return {
            "BLOCK_N": self.rows,
            "BLOCK_C": self.classes,
            "BLOCK_D": self.depth,
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
        }


def tiles_for(tensor: Tensor) -> Tiles:
    """Return block sizes of the portable kernels for the dtype and device of ``tensor``."""
    if not tensor.is_cuda:
        return Tiles(32, 32, 16, 4, 1)  # the interpreter; small, so tests cover the edges of blocks
    if tensor.dtype == torch.float32:
        return Tiles(64, 64, 32, 4, 3)
    return Tiles(128, 128, 64, 8, 3)


def tile_classes(width: int) -> int:
    """Return the number of classes in a tile of the Hopper kernels."""
    return 128 if width <= RESIDENT else 256


def marked_shape(rows: int, classes: int, width: int) -> tuple[int, int]:
    """Return the shape of the marks of tiles with a label: groups of rows by tiles."""
    return cdiv(rows, GROUP), cdiv(classes, tile_classes(width))


def whole_tiles(classes: int) -> int:
    """Round the number of classes up to a multiple of every kernel's tile."""
    return cdiv(classes, 256) * 256


def cdiv(value: int, step: int) -> int:
    """Return the quotient rounded up; Triton's own function is slow outside a kernel."""
    return -(-value // step)


def row_blocks(width: int) -> dict[str, int]:
    """Return launch options of the kernels that hold whole rows: about 1,024 values per warp."""
    padded = max(16, 1 << (width - 1).bit_length())
    return {
        "BLOCK_R": max(1, 1024 // padded),
        "BLOCK_D": padded,
        "num_warps": min(max(1, padded // 2048), 16),
    }


def shares_for(rows: int, classes: int, tiles: Tiles, tensor: Tensor) -> tuple[int, int]:
    """Split the classes so few rows still fill the device, into (tiles per share, shares)."""
    blocks = -(-rows // tiles.rows)
    tiles_in_all = -(-classes // tiles.classes)
    # four blocks per multiprocessor hide each other's waiting for memory
    wanted = max(1, min(tiles_in_all, -(-4 * processors(tensor.device) // blocks)))
    per_share = -(-tiles_in_all // wanted)
    return per_share, -(-tiles_in_all // per_share)


@functools.cache
def processors(device: torch.device) -> int:
    """Return the number of multiprocessors of the device; 1 for the interpreter."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def precision_of(tensor: Tensor) -> str:
    """Return how to form float32 products; three tf32 products on a GPU come close to float32."""
    return "tf32x3" if tensor.is_cuda else "exact"
