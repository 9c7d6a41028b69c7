//! The metadata of kernels in the ELF note of a code object.
//!
//! The format is in LLVM's "User Guide for AMDGPU Backend", "Code Object V3 to V6 Metadata".

use object::LittleEndian;
use object::elf::{FileHeader64, NoteType};
use object::read::elf::{FileHeader, SectionHeader};
use serde::{Deserialize, Serialize};

/// The type of the note with the metadata.
const NT_AMDGPU_METADATA: NoteType = NoteType(32);

/// A kernel's entry in `amdhsa.kernels`.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct Notes {
    /// The symbol of the kernel's code.
    #[serde(rename = ".name")]
    pub(crate) symbol: String,
    /// Vector registers for each lane, including the accumulation registers that share their file
    /// (gfx90a and later).
    #[serde(rename = ".vgpr_count")]
    pub(crate) vgprs: u32,
    /// Accumulation registers for each lane.
    #[serde(rename = ".agpr_count", default)]
    pub(crate) agprs: u32,
    /// Scalar registers for each wave.
    #[serde(rename = ".sgpr_count")]
    pub(crate) sgprs: u32,
    /// Vector registers spilled to memory.
    #[serde(rename = ".vgpr_spill_count", default)]
    pub(crate) vgpr_spills: u32,
    /// Scalar registers spilled to vector registers or memory.
    #[serde(rename = ".sgpr_spill_count", default)]
    pub(crate) sgpr_spills: u32,
    /// Bytes of scratch memory for each lane.
    #[serde(rename = ".private_segment_fixed_size")]
    pub(crate) scratch: u32,
    /// Bytes of LDS for each workgroup.
    #[serde(rename = ".group_segment_fixed_size")]
    pub(crate) lds: u32,
    /// Lanes of a wave.
    #[serde(rename = ".wavefront_size")]
    pub(crate) wave: u32,
    /// Whether the stack grows while the kernel runs (calls through pointers, recursion).
    #[serde(rename = ".uses_dynamic_stack", default)]
    pub(crate) dynamic_stack: bool,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(rename = "amdhsa.kernels")]
    kernels: Vec<Notes>,
}

/// Reads the notes of every kernel of a code object.
///
/// # Errors
/// A description of the file's defect.
pub(crate) fn notes_of(code: &[u8]) -> Result<Vec<Notes>, String> {
    let header = FileHeader64::<LittleEndian>::parse(code).map_err(|error| error.to_string())?;
    let endian = LittleEndian;
    let sections = header.sections(endian, code).map_err(|error| error.to_string())?;
    for section in sections.iter() {
        let Some(mut notes) = section.notes(endian, code).map_err(|error| error.to_string())? else {
            continue;
        };
        while let Some(note) = notes.next().map_err(|error| error.to_string())? {
            if note.name() == b"AMDGPU" && note.n_type(endian) == NT_AMDGPU_METADATA {
                let metadata: Metadata =
                    rmp_serde::from_slice(note.desc()).map_err(|error| error.to_string())?;
                return Ok(metadata.kernels);
            }
        }
    }
    Err("no note with AMDGPU metadata".into())
}
