//! Named tensors in a file of safetensors: what `main.rs` and the test read and write.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use burn::prelude::*;
use burn::tensor::kind::Basic;
use burn::tensor::{BoolStore, DType};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

/// Why a file could not be read or written, or why a tensor is not the one that was asked for.
#[derive(Debug)]
pub struct TensorsError(String);

impl fmt::Display for TensorsError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for TensorsError {}

impl From<String> for TensorsError {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// Tensors by name.
#[derive(Debug, Default)]
pub struct Tensors(BTreeMap<String, TensorData>);

impl Tensors {
    /// Reads all tensors of a file.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, TensorsError> {
        let path = path.as_ref();
        let failed = |error: String| TensorsError(format!("{}: {error}", path.display()));
        let bytes = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|error| failed(error.to_string()))?;
        let mut tensors = BTreeMap::new();
        for (name, view) in file.tensors() {
            let Some((_, dtype)) = DTYPES.iter().find(|(stored, _)| *stored == view.dtype()) else {
                let dtype = view.dtype();
                return Err(failed(format!("`{name}` is of type {dtype:?}, which Burn has not")));
            };
            let data =
                TensorData::try_from_bytes_vec(view.data().to_vec(), view.shape().to_vec(), *dtype)
                    .map_err(|error| failed(format!("`{name}`: {error}")))?;
            tensors.insert(name, data);
        }
        Ok(Self(tensors))
    }

    /// Writes all tensors to a file.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), TensorsError> {
        let path = path.as_ref();
        let failed = |error: String| TensorsError(format!("{}: {error}", path.display()));
        let mut views = Vec::new();
        for (name, data) in &self.0 {
            let Some((dtype, _)) = DTYPES.iter().find(|(_, held)| *held == data.dtype()) else {
                let dtype = data.dtype();
                return Err(failed(format!(
                    "`{name}` is of type {dtype:?}, which cannot be stored"
                )));
            };
            let view = TensorView::new(*dtype, data.shape().to_vec(), data.as_bytes())
                .map_err(|error| failed(format!("`{name}`: {error}")))?;
            views.push((name, view));
        }
        let bytes =
            safetensors::serialize(views, None).map_err(|error| failed(error.to_string()))?;
        std::fs::write(path, bytes).map_err(|error| failed(error.to_string()))
    }

    /// The data of all tensors, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &TensorData)> {
        self.0.iter()
    }

    /// The floating-point tensor of this name; a scalar has one axis of size 1.
    pub fn float<const D: usize>(
        &self,
        name: &str,
        device: &Device,
    ) -> Result<Tensor<D>, TensorsError> {
        self.tensor(name, "floating-point", DType::is_float, device)
    }

    /// The integer tensor of this name; a scalar has one axis of size 1.
    pub fn int<const D: usize>(
        &self,
        name: &str,
        device: &Device,
    ) -> Result<Tensor<D, Int>, TensorsError> {
        self.tensor(name, "integer", |dtype| dtype.is_int() || dtype.is_uint(), device)
    }

    /// The boolean tensor of this name; a scalar has one axis of size 1.
    pub fn bool<const D: usize>(
        &self,
        name: &str,
        device: &Device,
    ) -> Result<Tensor<D, Bool>, TensorsError> {
        self.tensor(name, "boolean", DType::is_bool, device)
    }

    /// Adds a tensor.
    pub fn insert<const D: usize, K: Basic>(&mut self, name: &str, tensor: Tensor<D, K>) {
        let data = tensor.into_data();
        let data = match data.dtype() {
            DType::Bool(BoolStore::Native) => data,
            DType::Bool(_) => data.convert::<bool>(),
            _ => data,
        };
        self.0.insert(name.to_string(), data);
    }

    /// Adds a tensor of one element, which is stored without axes.
    pub fn insert_scalar<K: Basic>(&mut self, name: &str, tensor: Tensor<1, K>) {
        self.insert(name, tensor);
        if let Some(data) = self.0.remove(name) {
            self.0.insert(name.to_string(), reshaped(data, Vec::new()));
        }
    }

    fn tensor<const D: usize, K: Basic>(
        &self,
        name: &str,
        kind: &str,
        is_of_kind: impl Fn(&DType) -> bool,
        device: &Device,
    ) -> Result<Tensor<D, K>, TensorsError> {
        let Some(data) = self.0.get(name) else {
            let names: Vec<_> = self.0.keys().collect();
            return Err(TensorsError(format!("there is no `{name}` among {names:?}")));
        };
        let (dtype, rank) = (data.dtype(), data.rank());
        if !is_of_kind(&dtype) {
            return Err(TensorsError(format!("`{name}` shall be {kind}, but is {dtype:?}")));
        }
        let data = match rank {
            0 if D == 1 => reshaped(data.clone(), vec![1]),
            rank if rank == D => data.clone(),
            _ => {
                return Err(TensorsError(format!("`{name}` shall have {D} axes, but has {rank}")));
            }
        };
        Ok(Tensor::from_data(data, (device, dtype)))
    }
}

fn reshaped(data: TensorData, shape: Vec<usize>) -> TensorData {
    let (bytes, _, dtype) = data.into_parts();
    TensorData::from_bytes(bytes, shape, dtype)
}

/// The element types of both formats that are the same.
pub const DTYPES: [(Dtype, DType); 13] = [
    (Dtype::F64, DType::F64),
    (Dtype::F32, DType::F32),
    (Dtype::F16, DType::F16),
    (Dtype::BF16, DType::BF16),
    (Dtype::I64, DType::I64),
    (Dtype::I32, DType::I32),
    (Dtype::I16, DType::I16),
    (Dtype::I8, DType::I8),
    (Dtype::U64, DType::U64),
    (Dtype::U32, DType::U32),
    (Dtype::U16, DType::U16),
    (Dtype::U8, DType::U8),
    (Dtype::BOOL, DType::Bool(BoolStore::Native)),
];
