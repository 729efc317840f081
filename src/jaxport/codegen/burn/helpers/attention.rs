/// `jax.nn.dot_product_attention`: queries [b, t, n, h], keys and values [b, s, n or fewer, h]. `mask` is true where a key
/// is seen: [b or 1, n or 1, t or 1, s].
pub fn dot_product_attention(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    mask: Option<Tensor<4, Bool>>,
) -> Tensor<4> {
    let [_, _, _, size] = query.dims();
    biased_attention(query, key, value, None, mask, 1.0 / (size as f64).sqrt())
}

/// `dot_product_attention` with scores of this scale, to which `bias` is added: [b or 1, n or 1, t or 1, s].
pub fn biased_attention(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    bias: Option<Tensor<4>>,
    mask: Option<Tensor<4, Bool>>,
    scale: f64,
) -> Tensor<4> {
    let ([batch, length, heads, size], dtype) = (query.dims(), FloatDType::from(query.dtype()));
    let ([_, keys, groups, _], [_, _, _, width]) = (key.dims(), value.dims());
    let rows = heads / groups * length; // those of all heads that share keys
    let query = query.swap_dims(1, 2).reshape([batch, groups, rows, size]);
    let scores = query.matmul(key.permute([0, 2, 3, 1])).cast(FloatDType::F32);
    let mut scores = scores.reshape([batch, heads, length, keys]) * scale;
    if let Some(bias) = bias {
        scores = scores + bias.cast(FloatDType::F32);
    }
    if let Some(mask) = mask {
        scores = scores.mask_fill(mask.bool_not(), -0.7 * f32::MAX);
    }
    let weights = softmax(scores, 3).cast(dtype).reshape([batch, groups, rows, keys]);
    let values = weights.matmul(value.swap_dims(1, 2));
    values.reshape([batch, heads, length, width]).swap_dims(1, 2)
}

/// Where queries see keys: up to their own position.
pub fn causal_mask(queries: usize, keys: usize, device: &Device) -> Tensor<4, Bool> {
    Tensor::<2, Bool>::tril_mask([queries, keys], 0, device).bool_not().unsqueeze()
}

/// The attention of a sequence to itself in which each place sees itself and those before it.
pub fn causal_attention(attention: &MultiHeadAttention, x: Tensor<3>) -> Tensor<3> {
    let [batch, length, _] = x.dims();
    let mask = generate_autoregressive_mask(batch, length, &x.device());
    attention.forward(MhaInput::self_attn(x).mask_attn(mask)).context
}
