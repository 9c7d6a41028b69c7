//! Training: of a whole model ([`bytes`]), or of adapters of a model ([`finetune`]).

pub mod bytes;
mod corpus;
mod decoder;
mod drawn;
pub mod finetune;
mod run;
mod save;

pub use corpus::{Corpus, Windows, bytes_of};
pub use decoder::{Base, Decoder, Layer, Places, TensorOf, Trained};
pub use drawn::Drawn;
pub use run::{Reading, Recipe, Trainer};
pub use save::{save, save_byte_tokenizer};
