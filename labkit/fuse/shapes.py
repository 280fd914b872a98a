"""The forwards that labkit knows, as shapes for match.py: decoder layers, attention, MLPs, norms and rotary positions.

They differ in more than names: where the norms stand, whether projections are merged, where a norm rounds. What
is not here, Granite's scaled residuals or OLMo 2's norms over whole projections, is left alone.
"""

from __future__ import annotations

_LAYER = """
    residual = x
    x = self.NORM_ATTENTION(x)
    x, _ = self.ATTENTION(hidden_states=x, **CONTEXT)
    {after_attention}
    residual = x
    x = self.NORM_MLP(x)
    x = self.MLP(x)
    {after_mlp}
    return x
"""

_SANDWICH = ("x = self.{}(x)\n    x = residual + x", "AFTER_ATTENTION", "AFTER_MLP")
_DROPOUT = ("x = residual + self.{}(x)", "DROP_ATTENTION", "DROP_MLP")

LAYERS = (
    ("pre-norm", _LAYER.format(after_attention="x = residual + x", after_mlp="x = residual + x")),
    *(
        (name, _LAYER.format(after_attention=text.format(first), after_mlp=text.format(second)))
        for name, (text, first, second) in (
            ("sandwich norms", _SANDWICH),
            ("pre-norm with dropout", _DROPOUT),
        )
    ),
)

_ATTENTION = """
    tokens = x.shape[:-1]
    shape = (*tokens, -1, self.head_dim)
    {heads}
    cos, sin = position_embeddings
    q, k = apply_rotary_pos_emb(q, k, cos, sin)
    if past_key_values is not None:
        k, v = past_key_values.update(k, v, self.layer_idx)
    function = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
    out, weights = function(self, q, k, v, attention_mask, **TERMS)
    out = out.reshape(*tokens, -1).contiguous()
    out = self.OUT(out)
    return out, weights
"""

_APART = """q = self.Q(x).view(shape).transpose(1, 2)
    k = self.K(x).view(shape).transpose(1, 2)
    v = self.V(x).view(shape).transpose(1, 2)"""

_NORMED = """q = self.Q_NORM(self.Q(x).view(shape)).transpose(1, 2)
    k = self.K_NORM(self.K(x).view(shape)).transpose(1, 2)
    v = self.V(x).view(shape).transpose(1, 2)"""

_NORMED_AFTER = """
    q = self.Q_NORM(q)
    k = self.K_NORM(k)"""

_TOGETHER = """qkv = self.QKV(x)
    edge = self.config.num_attention_heads * self.head_dim
    q = qkv[..., :edge]
    k = qkv[..., edge : edge + self.num_key_value_heads * self.head_dim]
    v = qkv[..., edge + self.num_key_value_heads * self.head_dim :]
    q = q.view(shape).transpose(1, 2)
    k = k.view(shape).transpose(1, 2)
    v = v.view(shape).transpose(1, 2)"""

ATTENTIONS = tuple(
    (name, _ATTENTION.format(heads=heads))
    for name, heads in (
        ("three projections", _APART),
        ("three projections, normed heads", _NORMED),
        ("three projections, heads normed after", _APART + _NORMED_AFTER),
        ("one projection", _TOGETHER),
    )
)

TERMS = frozenset(("dropout", "scaling", "sliding_window", "softcap", "**"))
"""What a layer may hand to its attention function."""

MLPS = (
    ("gated", "out = self.DOWN(self.ACTIVATION(self.GATE(x)) * self.UP(x))\nreturn out"),
    ("gated, at once", "return self.DOWN(self.ACTIVATION(self.GATE(x)) * self.UP(x))"),
    (
        "gated, one projection",
        """
        up = self.GATE_UP(x)
        gate, up = up.chunk(2, dim=-1)
        up = up * self.ACTIVATION(gate)
        return self.DOWN(up)
        """,
    ),
)

NORMS = (
    (
        "cast, then weight",
        """
        dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.EPS)
        return self.weight * x.to(dtype)
        """,
    ),
    (
        "one plus weight, then cast",
        """
        out = self._norm(x.float())
        out = out * (1.0 + self.weight.float())
        return out.type_as(x)
        """,
    ),
)

UNIT = (("unit vector", "return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.EPS)"),)
"""`_norm` of the second kind of norm."""

ROTARY = (
    (
        "whole heads",
        """
        cos = cos.unsqueeze(unsqueeze_dim)
        sin = sin.unsqueeze(unsqueeze_dim)
        turned_q = (q * cos) + (rotate_half(q) * sin)
        turned_k = (k * cos) + (rotate_half(k) * sin)
        return turned_q, turned_k
        """,
    ),
    (
        "the front of heads",
        """
        cos = cos.unsqueeze(unsqueeze_dim)
        sin = sin.unsqueeze(unsqueeze_dim)
        turning = cos.shape[-1]
        q_front, q_rest = q[..., :turning], q[..., turning:]
        k_front, k_rest = k[..., :turning], k[..., turning:]
        turned_q = torch.cat([(q_front * cos) + (rotate_half(q_front) * sin), q_rest], dim=-1)
        turned_k = torch.cat([(k_front * cos) + (rotate_half(k_front) * sin), k_rest], dim=-1)
        return turned_q, turned_k
        """,
    ),
)

HALVES = (
    (
        "halves",
        """
        first = x[..., : x.shape[-1] // 2]
        second = x[..., x.shape[-1] // 2 :]
        return torch.cat((-second, first), dim=-1)
        """,
    ),
)
"""`rotate_half`."""
