//! The errors of the program, with texts for the user.

use std::path::PathBuf;

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder is missing, cannot be read, or is damaged.
    #[error("{path}: {reason}")]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A setting of the model is missing or has a value that makes no sense.
    #[error("{path}: `{field}`: expected {expected}, found {found}")]
    Field {
        /// The file.
        path: PathBuf,
        /// The name of the setting.
        field: String,
        /// What would be right.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A model that this program does not run.
    #[error("{path}: {what} not supported; supported are {supported}")]
    Unsupported {
        /// The file that says so.
        path: PathBuf,
        /// What the model needs, as the start of a sentence ("a mixture of experts is").
        what: String,
        /// What the program has.
        supported: String,
    },
    /// A weight is missing, or has another shape or dtype than the settings say.
    #[error("{path}: tensor `{name}`: expected {expected}, found {found}")]
    Tensor {
        /// The file, or the folder of files.
        path: PathBuf,
        /// The tensor's name in the file.
        name: String,
        /// The shape or dtype that the settings ask for.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The model does not fit in the device's memory.
    #[error(
        "the model needs {needed} of the device's memory, of which {free} are free; \
         a lower --context, --dtype bf16 or --quantize needs less"
    )]
    Memory {
        /// Weights, cache and working memory, as text with a unit.
        needed: String,
        /// What the device has left.
        free: String,
    },
    /// The prompt leaves no room in the context.
    #[error(
        "expected a prompt and an answer of at most {limit} tokens, found {prompt} of the prompt + {answer} to generate"
    )]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens to generate.
        answer: usize,
        /// The tokens that the cache or the model has room for.
        limit: usize,
    },
    /// A token that the model does not have.
    #[error("expected token ids below {vocabulary}, found {token}")]
    Token {
        /// The id.
        token: u32,
        /// The size of the model's vocabulary.
        vocabulary: usize,
    },
    /// The chat template does not compile, or refuses the conversation.
    #[error("the chat template: {0}")]
    Template(String),
    /// An argument of a function or an option of the program is out of range.
    #[error("{name}: expected {expected}, found {found}")]
    Argument {
        /// The argument or option.
        name: &'static str,
        /// The range.
        expected: String,
        /// The value.
        found: String,
    },
    /// The device reported an error.
    #[error(transparent)]
    Device(#[from] burn_rocm::RocmError),
    /// An error of the cache, such as too few free blocks.
    #[error(transparent)]
    Cache(#[from] burn_rocm_nn::language::CacheError),
    /// Adapters are damaged or don't fit the model.
    #[error(transparent)]
    Lora(#[from] burn_rocm_nn::language::lora::LoraError),
    /// The model's results are NaN.
    #[error("the model's scores are not numbers; f16 may be too narrow for it: --dtype bf16 or f32")]
    NotNumbers,
    /// The text cannot be written to the standard output.
    #[error("writing the text: {0}")]
    Output(#[from] std::io::Error),
    /// The server can't listen, or a measurement's connection failed.
    #[error("the server: {0}")]
    Server(String),
    /// The device reported an error when a tensor was read.
    #[error("reading results from the device: {0}")]
    Read(String),
}

impl Error {
    /// An [`Error::Server`].
    pub(crate) fn server(reason: impl std::fmt::Display) -> Self {
        Self::Server(reason.to_string())
    }

    /// An [`Error::File`].
    pub fn file(path: impl Into<PathBuf>, reason: impl std::fmt::Display) -> Self {
        Self::File { path: path.into(), reason: reason.to_string() }
    }
}
