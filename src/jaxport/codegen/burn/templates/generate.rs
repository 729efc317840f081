//! Text, token by token, with the cache of keys and values.

use burn::prelude::*;
use burn::tensor::DType;

use super::model::${root};

/// The keys and values of all layers.
pub type Cache = [Tensor<4>; ${count}];

impl ${root} {
    /// The cache of one sequence before its first token${rows_documented}.
    pub fn cache(&self, ${rows_parameter}device: &Device) -> Cache {
        std::array::from_fn(|_| Tensor::zeros([1, ${heads}, ${rows}, ${size}], (device, DType::${dtype})))
    }

    /// Computes the scores of the token behind each new one, and the cache with the new ones; it has
    /// those of the text before them.
    pub fn step(&self, new: &[i32], before: usize, cache: Cache) -> (Tensor<3>, Cache) {
        let device = cache[0].device();
        let count = before + new.len();
        let tokens = Tensor::<1, Int>::from_data(new, (&device, DType::${tokens})).unsqueeze();
        let [${caches}] = cache;
${called}
    }

    /// Continues a text by the most likely tokens, each as soon as it is known${rows_ending}.
    pub fn generate(&self, text: &[i32], ${rows_parameter}device: &Device) -> impl Iterator<Item = i32> {
        let (mut new, mut before) = (text.to_vec(), 0);
        let mut cache = Some(self.cache(${rows_argument}device));
        std::iter::from_fn(move || {
            ${rows_guard}
            let (scores, present) = self.step(&new, before, cache.take()?);
            let (last, best) = (new.len() - 1, scores.argmax(2));
            (before, cache) = (before + new.len(), Some(present));
            new = vec![best.slice_dim(1, last..).into_scalar()];
            Some(new[0])
        })
    }
}
