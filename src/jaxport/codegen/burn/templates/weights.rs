//! The weights of the model: read and written, by the paths of its fields.

use burn::prelude::*;
use burn::store::{BurnpackStore, ${adapter}ModuleSnapshot, ModuleStore, SafetensorsStore, SafetensorsStoreError};
use burn::tensor::${types};

use super::model::${root};

impl ${root} {
    /// Reads the weights of a file: of safetensors, or of Burn's own format if its name ends in `.bpk`.
    #[cfg(feature = "std")]
    pub fn load(
        path: impl Into<std::path::PathBuf>,
        device: &Device,
    ) -> Result<Self, SafetensorsStoreError> {
        let path = path.into();
        if is_burnpack(&path) {
            Self::from_store(BurnpackStore::from_file(path)${cast}, device).map_err(other)
        } else {
            Self::from_store(SafetensorsStore::from_file(path)${cast}, device)
        }
    }

    /// Reads the weights of the bytes of such a file.
    pub fn from_bytes(bytes: Vec<u8>, device: &Device) -> Result<Self, SafetensorsStoreError> {
        if bytes.starts_with(&BURNPACK) {
            let store = BurnpackStore::from_bytes(Some(Bytes::from_bytes_vec(bytes)));
            Self::from_store(store${cast}, device).map_err(other)
        } else {
            Self::from_store(SafetensorsStore::from_bytes(Some(bytes))${cast}, device)
        }
    }

    /// Reads the weights of bytes that are part of the program; those of Burn's own format are not copied.
    pub fn from_static(
        bytes: &'static Aligned<[u8]>,
        device: &Device,
    ) -> Result<Self, SafetensorsStoreError> {
        if bytes.0.starts_with(&BURNPACK) {
            Self::from_store(BurnpackStore::from_static(&bytes.0)${cast}, device).map_err(other)
        } else {
            Self::from_bytes(bytes.0.to_vec(), device)
        }
    }

    /// The model with the weights that are part of the program.
    #[cfg(feature = "embed")]
    pub fn embedded(device: &Device) -> Result<Self, SafetensorsStoreError> {
        Self::from_bytes(include_bytes!("../model.safetensors").to_vec(), device)
    }

    /// Writes the weights, as `load` reads them; a file that is there is replaced, and its permissions stay.
    #[cfg(feature = "std")]
    pub fn save(&self, path: impl Into<std::path::PathBuf>) -> Result<(), SafetensorsStoreError> {
        let path = path.into();
        let file = std::fs::File::options().append(true).create(true).open(&path)?;
        let permissions = file.metadata()?.permissions(); // the stores make private files
        if is_burnpack(&path) {
            self.save_into(&mut BurnpackStore::from_file(&path).overwrite(true)).map_err(other)?;
        } else {
            self.save_into(&mut SafetensorsStore::from_file(&path).overwrite(true))?;
        }
        Ok(std::fs::set_permissions(path, permissions)?)
    }

    fn from_store<S: ModuleStore>(mut store: S, device: &Device) -> Result<Self, S::Error> {
        let mut model = Self::new(device);
        model.load_from(&mut store)?;
        Ok(model)
    }
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

#[cfg(feature = "std")]
fn is_burnpack(path: &std::path::Path) -> bool {
    path.extension().is_some_and(|extension| extension == "bpk")
}

fn other(error: impl std::fmt::Display) -> SafetensorsStoreError {
    SafetensorsStoreError::Other(error.to_string())
}
