/// `jax.nn.dot_product_attention`: queries [b, t, n, h], keys and values [b, s, n or fewer, h]. `mask` is true where a key
/// is seen, and like `bias` it is [b or 1, n or 1, t or 1, s]; causal queries see keys up to their own position.
pub fn dot_product_attention(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    bias: Option<Tensor<4>>,
    mask: Option<Tensor<4, Bool>>,
    scale: Option<f64>,
    is_causal: bool,
) -> Tensor<4> {
    let [batch, length, heads, size] = query.dims();
    let [_, keys, groups, _] = key.dims();
    let dtype = FloatDType::from(query.dtype());
    let spread = |x: Tensor<4>| {
        let [_, _, _, size] = x.dims();
        let x: Tensor<5> = x.swap_dims(1, 2).unsqueeze_dim(2);
        x.expand([batch, groups, heads / groups, keys, size]).reshape([batch, heads, keys, size])
    };
    let scores = query.swap_dims(1, 2).matmul(spread(key).transpose()).cast(FloatDType::F32);
    let mut scores = scores * scale.unwrap_or(1.0 / (size as f64).sqrt());
    if let Some(bias) = bias {
        scores = scores + bias.cast(FloatDType::F32);
    }
    let hidden = mask.map(|mask| mask.bool_not());
    let future = is_causal
        .then(|| Tensor::<2, Bool>::tril_mask([length, keys], 0, &scores.device()).unsqueeze());
    for mask in [hidden, future].into_iter().flatten() {
        scores = scores.mask_fill(mask, -0.7 * f32::MAX);
    }
    let weights = softmax(scores, 3).cast(dtype);
    weights.matmul(spread(value)).swap_dims(1, 2)
}

/// The attention of a sequence to itself in which each place sees itself and those before it.
pub fn causal_attention(attention: &MultiHeadAttention, x: Tensor<3>) -> Tensor<3> {
    let [batch, length, _] = x.dims();
    let mask = generate_autoregressive_mask(batch, length, &x.device());
    attention.forward(MhaInput::self_attn(x).mask_attn(mask)).context
}
