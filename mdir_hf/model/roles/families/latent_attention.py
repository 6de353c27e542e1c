"""Multi-head latent attention (since DeepSeek-V2): q, k and v are products of two factors with a norm between them.

The roles Q and K cover only rows that are not rotated. Each head of q and k, like each head of v and o, can therefore
be transformed by any invertible map. The rotated rows of k, which all heads share, have no role.
"""

from __future__ import annotations

from mdir_hf.model.roles.roles import Role, RowsOfEach
from mdir_hf.model.roles.rows import GATED_MLP, NORMS, LayerRow, ProductRow, named, rows

_ALL_HEADS = ("heads", "heads")  # every head has its own keys and values, even if the config states groups
# In some families, layers without positions have more of these rows and no rotated ones.
_WITHOUT_POSITIONS = RowsOfEach("heads", "qk_nope_head_dim")
_VALUES = RowsOfEach("heads", "v_head_dim", from_end=True)
_LATENT = RowsOfEach(1, "kv_lora_rank")

# A Longcat layer has two attentions, two MLPs and experts; only the first of each pair gets a role.
_LONGCAT = {"longcat_flash"}
_ATTENTION = r"(?:self_attn|attention|self_attn\.0)"

_MHA2MLA = r"self_attn\.kv_proj"

_AXK2 = frozenset({"axk2"})
_DEEPSEEK_V4 = frozenset({"deepseek_v4"})

ROWS: tuple[LayerRow, ...] = (
    *rows(
        {rf"{_ATTENTION}\.q_proj": ((Role.Q, _WITHOUT_POSITIONS),)},
        beside=rf"{_ATTENTION}\.(?:kv_b_proj|wkv_b)\.weight",
        rope="none",
        n_heads=_ALL_HEADS,
    ),
    *rows({rf"{_ATTENTION}\.(?:kv_a_proj|wkv_a)_with_mqa": ((Role.KV_LATENT, _LATENT),)}),
    *rows({r"attention\.dense": Role.O}, beside=r"attention\.(?:kv_b_proj|wkv_b)\.weight"),
    *rows({r"self_attn\.0\.o_proj": Role.O}),
    *rows(
        {
            **named(r"%s_layernorm\.0", "input post_attention", NORMS),
            r"mlp\.router\.classifier": Role.ROUTER,
            **named(r"mlps\.0\.%s_proj", "gate up down", GATED_MLP),
        },
        _LONGCAT,
    ),
    # A.X-K2: norms followed by a low-rank gate.
    *rows(named(r"%s_layernorm\.norm", "input post_attention", NORMS), _AXK2),
    *rows({r"(?:input|post_attention)_layernorm\.(?:W_down|W_up|mlp\.fc1|mlp\.fc2)": ()}, _AXK2),
    # MHA2MLA: the rotated rows of q and k come first (k's are in a separate tensor), so neither can be split into
    # heads. The other rows of k go through a factor, shared with v or alone; v may have none.
    *rows({r"self_attn\.q_proj": ()}, beside=rf"{_MHA2MLA}\.up_v\.weight"),
    *rows({r"self_attn\.k_r_proj": (), rf"{_MHA2MLA}\.(?:up_k|down_k|down_v)": ()}),
    *rows({rf"{_MHA2MLA}\.down_kv": Role.KV_LATENT}),
    *rows({rf"{_MHA2MLA}\.up_v": Role.V}, unless_beside=rf"{_MHA2MLA}\.down_k?v\.weight"),
    # DeepSeek-V4: one key for all heads, which is also the value. Its output goes through two factors, in groups.
    *rows({r"(?:attn\.wkv|self_attn\.kv_proj)": (Role.K, Role.V)}, _DEEPSEEK_V4, n_heads=("heads", 1)),
    *rows({r"(?:attn\.norm|self_attn\.kv_norm)": Role.K_NORM}, _DEEPSEEK_V4),
    *rows(named("%s_norm", "attn ffn", NORMS), _DEEPSEEK_V4),
)

PRODUCT_ROWS: tuple[ProductRow, ...] = (
    ProductRow(
        Role.Q,
        rf"{_ATTENTION}\.q_b_proj\.weight",
        rf"{_ATTENTION}\.q_a_proj\.weight",
        rf"{_ATTENTION}\.q_a_layernorm\.weight",
        left_layout=_WITHOUT_POSITIONS,
        except_model_types=_AXK2,
        rope="none",
        n_heads=_ALL_HEADS,
    ),
    *(
        ProductRow(
            role,
            rf"{_ATTENTION}\.(?:kv_b_proj|wkv_b)\.weight",
            rf"{_ATTENTION}\.(?:kv_a_proj|wkv_a)_with_mqa\.weight",
            gain,
            left_layout=layout,
            right_layout=_LATENT,
            rope="none",
            n_heads=_ALL_HEADS,
        )
        # TransMLA converts other attention to latent attention, without a norm.
        for gain in (rf"{_ATTENTION}\.kv_a_(?:layer)?norm\.weight", None)
        for role, layout in ((Role.K, _WITHOUT_POSITIONS), (Role.V, _VALUES))
    ),
    ProductRow(Role.V, rf"{_MHA2MLA}\.up_v\.weight", rf"{_MHA2MLA}\.down_k?v\.weight", None),
    # A.X-K2: queries and an output gate read two inputs side by side: the latent after its norm and before it.
    ProductRow(
        Role.Q,
        rf"{_ATTENTION}\.(?:q_b_proj|q_gate_proj)\.weight",
        rf"{_ATTENTION}\.q_a_proj\.weight",
        rf"{_ATTENTION}\.q_a_layernorm\.weight",
        left_layout=_WITHOUT_POSITIONS,
        left_first_half=True,
        model_types=_AXK2,
        rope="none",
        n_heads=_ALL_HEADS,
    ),
    ProductRow(
        Role.Q,
        r"(?:attn\.wq_b|self_attn\.q_b_proj)\.weight",
        r"(?:attn\.wq_a|self_attn\.q_a_proj)\.weight",
        r"(?:attn\.q_norm|self_attn\.q_a_norm)\.weight",
        model_types=_DEEPSEEK_V4,
    ),
)
