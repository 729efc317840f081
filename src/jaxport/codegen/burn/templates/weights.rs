//! The weights of the model: read and written, by the paths of its fields.

use burn::prelude::*;
use burn::store::burn_pack::Tensor as Stored;
use burn::store::{BurnpackStore, ${adapter}ModuleSnapshot, SafetensorsStore, SafetensorsStoreError};
use burn::tensor::{AllocationProperty, Bytes${types}};
use bytes::Bytes as SharedBytes;
use safetensors::SafeTensors;

use super::model::${root};
use crate::tensors::DTYPES;

impl ${root} {
    /// Reads the weights of a file, of safetensors or of Burn's own format.
    #[cfg(feature = "std")]
    pub fn load(
        path: impl Into<std::path::PathBuf>,
        device: &Device,
    ) -> Result<Self, SafetensorsStoreError> {
        Self::from_bytes(std::fs::read(path.into())?, device)
    }

    /// Reads the weights of the bytes of such a file, which the tensors keep.
    pub fn from_bytes(bytes: Vec<u8>, device: &Device) -> Result<Self, SafetensorsStoreError> {
        Self::from_shared(bytes.into(), device)
    }

    /// Reads the weights of bytes that are part of the program, where they stay.
    pub fn from_static(
        bytes: &'static Aligned<[u8]>,
        device: &Device,
    ) -> Result<Self, SafetensorsStoreError> {
        Self::from_shared(SharedBytes::from_static(&bytes.0), device)
    }

    /// The model with the weights that are part of the program.
    #[cfg(feature = "embed")]
    pub fn embedded(device: &Device) -> Result<Self, SafetensorsStoreError> {
        static WEIGHTS: &Aligned<[u8]> = &Aligned(*include_bytes!("../model.safetensors"));
        Self::from_static(WEIGHTS, device)
    }

    /// Writes the weights: in Burn's own format if the name of the file ends in `.bpk`, and of safetensors otherwise. A
    /// file that is there is replaced, and its permissions stay.
    #[cfg(feature = "std")]
    pub fn save(&self, path: impl Into<std::path::PathBuf>) -> Result<(), SafetensorsStoreError> {
        let path = path.into();
        let file = std::fs::File::options().append(true).create(true).open(&path)?;
        let permissions = file.metadata()?.permissions(); // the stores make private files
        if path.extension().is_some_and(|extension| extension == "bpk") {
            self.save_into(&mut BurnpackStore::from_file(&path).overwrite(true)).map_err(other)?;
        } else {
            self.save_into(&mut SafetensorsStore::from_file(&path).overwrite(true))?;
        }
        Ok(std::fs::set_permissions(path, permissions)?)
    }

    fn from_shared(bytes: SharedBytes, device: &Device) -> Result<Self, SafetensorsStoreError> {
        let mut model = Self::new(device);
        if bytes.starts_with(&BURNPACK) {
            let bytes = Bytes::from_shared(bytes, AllocationProperty::Other);
            let mut store = BurnpackStore::from_bytes(Some(bytes))${cast};
            model.load_from(&mut store).map_err(other)?;
            return Ok(model);
        }
        let found = model.apply(shared_tensors(&bytes)?, None, ${boxed}, false);
        if let Some(error) = found.errors.first() {
            return Err(SafetensorsStoreError::ValidationFailed(error.to_string()));
        }
        if !found.missing.is_empty() {
            return Err(SafetensorsStoreError::TensorNotFound(found.to_string()));
        }
        Ok(model)
    }
}

/// The tensors of a file of safetensors: parts of its bytes, or copies of those that lie where numbers may not.
fn shared_tensors(bytes: &SharedBytes) -> Result<Vec<Stored>, SafetensorsStoreError> {
    let mut tensors = Vec::new();
    for (name, view) in SafeTensors::deserialize(bytes)?.tensors() {
        let Some((_, dtype)) = DTYPES.iter().find(|(stored, _)| *stored == view.dtype()) else {
            let dtype = view.dtype();
            return Err(other(format!("`{name}` is of type {dtype:?}, which Burn does not have")));
        };
        let (data, size) = (view.data(), dtype.size());
        let part = if !data.is_empty() && data.as_ptr().align_offset(size) == 0 {
            Bytes::from_shared(bytes.slice_ref(data), AllocationProperty::Other)
        } else {
            Bytes::from_bytes_vec(data.to_vec()) // which places nothing where numbers may lie, too
        };
        tensors.push(Stored::new(name, *dtype, view.shape(), None, part));
    }
    Ok(tensors)
}

/// The model with the weights that are part of the program, on the default device.
#[cfg(feature = "embed")]
impl Default for ${root} {
    fn default() -> Self {
        Self::embedded(&Device::default()).expect("the weights are those of the model")
    }
}

/// Bytes that lie where numbers may: `&Aligned(*include_bytes!("model.bpk"))`.
#[repr(C, align(64))]
pub struct Aligned<Bytes: ?Sized>(pub Bytes);

/// The first bytes of a file of Burn's own format.
const BURNPACK: [u8; 4] = 0x4255524e_u32.to_le_bytes();

fn other(error: impl std::fmt::Display) -> SafetensorsStoreError {
    SafetensorsStoreError::Other(error.to_string())
}
