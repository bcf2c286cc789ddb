"""List of torch operators that an untrusted exported program may call, because their kernels check their arguments.

Any other operator may access memory outside its tensors if it is called with wrong sizes. The operators of
`checks.CHECKED` are listed here too, because our own checks run before them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from vllm_mmout.errors import OptionError

_ELEMENTWISE: Final = """
abs absolute acos acosh add addcdiv addcmul angle arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh atan
atan2 atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil celu clamp
clamp_max clamp_min clip copy copysign cos cosh deg2rad detach digamma div divide elu eq erf erfc erfinv exp exp2 expm1
fill fix floor floor_divide fmax fmin fmod frac gelu greater greater_equal gt ge hardsigmoid hardswish hardtanh hypot
isfinite isinf isnan isneginf isposinf le leaky_relu lerp less less_equal lgamma log log10 log1p log2 log_sigmoid
log_sigmoid_forward logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit lt masked_fill maximum
minimum mish mul multiply nan_to_num ne neg negative not_equal positive pow rad2deg reciprocal relu relu6 remainder
round rsqrt rsub selu sgn sigmoid sign signbit silu sin sinc sinh softplus softshrink hardshrink special_expit
special_erf special_log1p special_logit special_xlogy sqrt square sub subtract tan tanh threshold true_divide trunc
where xlogy zero index_add index_copy index_fill index_put masked_scatter scatter scatter_add scatter_reduce tril triu
__and__ __or__ __xor__ __lshift__ __rshift__
""".split()  # noqa: SIM905 - a list of words
"""Names of elementwise operators. `ALLOWED` adds their in-place forms, such as ``add_``."""
_OTHERS: Final = """
glu prelu _prelu_kernel softmax log_softmax _softmax _log_softmax
all amax amin aminmax any argmax argmin argsort bincount bucketize count_nonzero cummax cummin cumprod cumsum diff histc
isin kthvalue logcumsumexp logsumexp max mean median min mode msort nanmean nanmedian nanquantile nansum norm prod
quantile sort std std_mean sum topk unique_consecutive unique_dim _unique2 var var_mean nonzero nonzero_numpy argwhere
alias as_strided atleast_1d atleast_2d atleast_3d broadcast_tensors broadcast_to cat channel_shuffle chunk clone
column_stack complex concat concatenate conj contiguous diag_embed diagonal diagonal_scatter dstack expand expand_as
flatten flip fliplr flipud hstack imag lift lift_fresh lift_fresh_copy meshgrid moveaxis movedim narrow native_dropout
numpy_T permute pixel_shuffle pixel_unshuffle polar ravel real repeat repeat_interleave reshape reshape_as resolve_conj
resolve_neg roll rot90 select select_scatter slice slice_scatter split split_with_sizes squeeze stack swapaxes swapdims
t tensor_split tile to _to_copy transpose type_as unbind unflatten unfold unsafe_chunk unsafe_split
unsafe_split_with_sizes unsqueeze _unsafe_view view view_as view_as_complex view_as_real vstack
constant_pad_nd pad reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
replication_pad3d
embedding gather index index_select _unsafe_index masked_select one_hot take take_along_dim
addbmm addmm addmv addr baddbmm bilinear bmm cdist cosine_similarity cross dot einsum inner kron linear linalg_cholesky
linalg_cholesky_ex linalg_cross linalg_det linalg_eigh linalg_inv linalg_inv_ex linalg_matmul linalg_matrix_norm
linalg_norm linalg_solve linalg_vector_norm _linalg_det det matmul mm mv outer pairwise_distance tensordot trace vdot
conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution _convolution
batch_norm group_norm instance_norm layer_norm native_batch_norm _native_batch_norm_legit
_native_batch_norm_legit_no_training native_group_norm native_layer_norm rms_norm
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d
adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d avg_pool1d avg_pool2d avg_pool3d max_pool1d
max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d max_pool3d_with_indices max_unpool2d max_unpool3d
affine_grid_generator col2im grid_sampler grid_sampler_2d grid_sampler_3d im2col upsample_bicubic2d
upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d
_upsample_nearest_exact1d _upsample_nearest_exact2d
_upsample_nearest_exact3d
scaled_dot_product_attention gru gru_cell lstm lstm_cell rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell
fft_fft fft_fft2 fft_fftfreq fft_fftn fft_fftshift fft_ifft fft_ifft2 fft_ifftn fft_ifftshift fft_irfft fft_irfft2
fft_irfftn fft_rfft fft_rfft2 fft_rfftfreq fft_rfftn _fft_c2c _fft_c2r _fft_r2c hamming_window hann_window istft stft
arange empty empty_like empty_permuted empty_strided eye full full_like linspace logspace new_empty new_empty_strided
new_full new_ones new_zeros ones ones_like rand rand_like randint randint_like randn randn_like scalar_tensor
tril_indices triu_indices zeros zeros_like bernoulli dropout feature_dropout
_assert_async _assert_scalar _assert_tensor_metadata _local_scalar_dense equal item sym_constrain_range
sym_constrain_range_for_size sym_numel sym_size sym_storage_offset sym_stride
""".split()  # noqa: SIM905 - a list of words
TRUST: Final = "trust_operators"
"""Engine option that lists additional operators which programs may call."""
ALLOWED: Final = frozenset(_ELEMENTWISE) | {f"{name}_" for name in _ELEMENTWISE} | frozenset(_OTHERS)
"""Names of the operators in ``torch.ops.aten`` that every exported program may call, even an untrusted program. The
engine option `TRUST` allows other operators."""
_OVERLOAD: Final = re.compile(r"(?!(\w*_)?out\Z|data\Z)[A-Za-z]\w*")
"""Pattern of the operator overloads that a program may call. It excludes the overloads "out" and "data".

The overload "out" writes into an argument. The overload "data" does not check the lengths of packed sequences.
"""
_ELSEWHERE: Final = re.compile(
    r"torch\.ops\.torchvision\.nms\.default"
    r"|torch\.ops\.higher_order\.(cond|map_impl|scan|wrap_with_autocast|wrap_with_set_grad_enabled)"
    r"|torch\._?sym_(float|int|max|min|not|ite|sqrt|sum)|math\.(ceil|floor|trunc|sqrt)"
    r"|_operator\.(getitem|add|sub|mul|truediv|floordiv|mod|pow|neg|pos|eq|ne|lt|le|gt|ge|and_|or_|not_)"
)
_OPERATOR: Final = re.compile(
    r"torch\.ops\.(?P<name>(?P<space>[A-Za-z]\w*)\.(?P<own>(?!__)\w+|__(and|or|xor|lshift|rshift)__))"
    r"(\.(?P<form>[A-Za-z]\w*))?"
)


def trusted_by(settings: Any) -> frozenset[str]:
    """Return the additional operators that the engine's settings allow. A model folder cannot allow operators."""
    names = settings.get(TRUST, ()) if isinstance(settings, Mapping) else ()
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise OptionError(f'{TRUST} must be a list of names such as "aten.cdist", got {names!r:.200}')
    return frozenset(names)


def is_operator(target: str) -> bool:
    """Return whether a call target is the name of an operator, and not of any other object in torch or Python."""
    return bool(_ELSEWHERE.fullmatch(target) or _OPERATOR.fullmatch(target))


def untrusted(targets: Iterable[str], trusted: Collection[str] = ()) -> dict[str, str]:
    """Find call targets whose operators are neither in `ALLOWED` nor in ``trusted``. Return {target: operator name}.

    For example, the dict maps "torch.ops.aten.set_.source_Tensor" to "aten.set_", the name that ``trusted`` would have
    to contain. Calls of overloads that may not be called, such as "out", are included.
    """
    refused = {}
    for target in targets:
        match = _OPERATOR.fullmatch(target)
        if match is None or _ELSEWHERE.fullmatch(target) or match["name"] in trusted:
            continue
        allowed = match["space"] == "aten" and match["own"] in ALLOWED
        if not (allowed and match["form"] and _OVERLOAD.fullmatch(match["form"])):
            refused[target] = match["name"]
    return refused
