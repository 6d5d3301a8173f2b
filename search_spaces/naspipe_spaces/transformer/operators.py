"""The operators of candidate layers: convolutions over positions, attention, gated linear units.

Shapes: N samples, T positions, S positions of a memory, D width, E inner width, H heads, K kernel size. Every
operator maps (N, T, D) to (N, T, D) and has an inner width E; another E is another candidate. A mask is (N, T), True at
real positions and False at padding, or None if nothing is padded. The input of an operator is zero at padding, and no
padded position may influence another position.

Attention does not use torch's fused kernels, whose choice, and so the bits, would depend on device, mask and length.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Operator(nn.Module):
    """A map of sequences; its subclasses take ``width`` and ``inner`` first."""

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Map (N, T, D) to (N, T, D).

        Args:
            x: (N, T, D), zero at padding.
            mask: (N, T), True at real positions, or None.
        """
        raise NotImplementedError


class Convolution(Operator):
    """Standard convolution to the inner width, ReLU, and a linear map back."""

    def __init__(self, width: int, inner: int, kernel: int, causal: bool) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(width, inner, kernel)
        self.project = nn.Linear(inner, width)
        self.causal = causal

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Map (N, T, D) to (N, T, D)."""
        kernel = self.convolution.kernel_size[0]
        y = self.convolution(pad_positions(x.transpose(1, 2), kernel, self.causal))
        out: Tensor = self.project(y.relu().transpose(1, 2))
        return out


class SeparableConvolution(Operator):
    """Depthwise convolution, a linear map to the inner width, ReLU, and a linear map back."""

    def __init__(self, width: int, inner: int, kernel: int, causal: bool) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(width, width, kernel, groups=width)
        self.pointwise = nn.Linear(width, inner)
        self.project = nn.Linear(inner, width)
        self.causal = causal

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Map (N, T, D) to (N, T, D)."""
        kernel = self.depthwise.kernel_size[0]
        y = self.depthwise(pad_positions(x.transpose(1, 2), kernel, self.causal))
        out: Tensor = self.project(self.pointwise(y.transpose(1, 2)).relu())
        return out


class LightweightConvolution(Operator):
    """A gated linear unit to the inner width, a lightweight convolution there, and a linear map back.

    The convolution is depthwise; E / H neighbouring channels share one kernel, which softmax normalises. Source: Wu
    et al., "Pay Less Attention with Lightweight and Dynamic Convolutions", ICLR 2019.
    """

    def __init__(self, width: int, inner: int, kernel: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.expand = nn.Linear(width, 2 * inner)
        self.kernel = nn.Parameter(torch.empty(heads, kernel))
        nn.init.xavier_uniform_(self.kernel)
        self.project = nn.Linear(inner, width)
        self.causal = causal

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Map (N, T, D) to (N, T, D)."""
        # The bias of the linear map is added at padding too.
        y = zero_padding(F.glu(self.expand(x), dim=-1), mask).transpose(1, 2)
        channels, (heads, kernel) = y.shape[1], self.kernel.shape
        weights = self.kernel.softmax(dim=-1).unsqueeze(1).expand(-1, channels // heads, -1)
        y = F.conv1d(pad_positions(y, kernel, self.causal), weights.reshape(channels, 1, kernel), groups=channels)
        out: Tensor = self.project(y.transpose(1, 2))
        return out


class SelfAttention(Operator):
    """Multi-head attention of a sequence to itself; its heads share the inner width.

    Source: Vaswani et al., "Attention Is All You Need", NeurIPS 2017.
    """

    def __init__(self, width: int, inner: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.query_key_value = nn.Linear(width, 3 * inner)
        self.project = nn.Linear(inner, width)
        self.heads = heads
        self.causal = causal

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Map (N, T, D) to (N, T, D)."""
        allowed = mask[:, None, None, :] if mask is not None else None
        if self.causal:
            past = torch.ones(1, 1, x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
            allowed = past if allowed is None else allowed & past
        query, key, value = self.query_key_value(x).chunk(3, dim=-1)
        out: Tensor = self.project(attend(query, key, value, self.heads, allowed))
        return out


class CrossAttention(nn.Module):
    """Multi-head attention of a sequence to a memory."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.project = nn.Linear(width, width)
        self.heads = heads

    def forward(self, x: Tensor, memory: Tensor, memory_mask: Tensor | None) -> Tensor:
        """Return the attention of each position of ``x`` to the memory, (N, T, D).

        Args:
            x: (N, T, D).
            memory: (N, S, D), zero at padding.
            memory_mask: (N, S), True at real positions, or None.
        """
        key, value = self.key_value(memory).chunk(2, dim=-1)
        allowed = memory_mask[:, None, None, :] if memory_mask is not None else None
        out: Tensor = self.project(attend(self.query(x), key, value, self.heads, allowed))
        return out


class GatedLinearUnit(Operator):
    """A linear map to the inner width, gated by the sigmoid of another, and a linear map back, at each position.

    Source: Dauphin et al., "Language Modeling with Gated Convolutional Networks", ICML 2017.
    """

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.expand = nn.Linear(width, 2 * inner)
        self.project = nn.Linear(inner, width)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Map (N, T, D) to (N, T, D)."""
        out: Tensor = self.project(F.glu(self.expand(x), dim=-1))
        return out


def attend(query: Tensor, key: Tensor, value: Tensor, heads: int, allowed: Tensor | None) -> Tensor:
    """Return softmax(query key' / sqrt(E / H)) value of every head, side by side.

    Args:
        query: (N, T, E).
        key: (N, S, E).
        value: (N, S, E).
        heads: H, which divides E.
        allowed: Whether a position may see a key, (N or 1, 1, T or 1, S); None: all keys. The result is zero for a
            position that may see no key.

    Returns:
        (N, T, E).
    """
    q, k, v = (_split_heads(x, heads) for x in (query, key, value))
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    if allowed is not None:
        # The lowest finite number makes any other score negligible. Minus infinity would give NaN in rows without keys.
        hiding = torch.zeros_like(allowed, dtype=scores.dtype).masked_fill(~allowed, torch.finfo(scores.dtype).min)
        scores = scores + hiding
    found = scores.softmax(dim=-1) @ v
    if allowed is not None:
        found = found.masked_fill(~allowed.any(dim=-1, keepdim=True), 0)
    out: Tensor = found.transpose(1, 2).flatten(2)
    return out


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """Turn (N, positions, E) into (N, H, positions, E / H)."""
    samples, positions, inner = x.shape
    return x.view(samples, positions, heads, inner // heads).transpose(1, 2)


def pad_positions(x: Tensor, kernel: int, causal: bool) -> Tensor:
    """Pad a sequence with zeros, so that a convolution keeps its length.

    Args:
        x: (N, channels, T).
        kernel: Size of the kernel, odd.
        causal: Whether to put all zeros before the sequence, so that no position sees a later one.

    Returns:
        (N, channels, T + kernel - 1).
    """
    return F.pad(x, (kernel - 1, 0) if causal else (kernel // 2, kernel // 2))


def zero_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return (N, T, D) with zeros where the mask (N, T) is False."""
    return x if mask is None else x.masked_fill(~mask.unsqueeze(-1), 0)
