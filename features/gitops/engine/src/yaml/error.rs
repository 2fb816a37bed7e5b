//! The faults of a file that is no YAML. Its author mends them.

use super::{MAX_DEPTH, MAX_DOCUMENTS};

/// The reason why a file cannot be read, with its line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{fault}")]
pub(crate) struct YamlError {
    /// The line, from 1.
    pub(crate) line: u64,
    pub(crate) fault: YamlFault,
}

/// The fault of a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum YamlFault {
    /// With the words of the parser.
    #[error("the file is not valid YAML: {0}")]
    InvalidYaml(String),
    /// With the words of the parser.
    #[error("the file is not valid JSON: {0}")]
    InvalidJson(String),
    #[error("the file ends too early")]
    Truncated,
    #[error("it is not YAML")]
    UnexpectedEvent,
    #[error("the file has over {MAX_DOCUMENTS} documents: split it")]
    TooManyDocuments,
    #[error("values are nested over {MAX_DEPTH} levels deep")]
    TooDeep,
    #[error("an alias (*) is inside of its own anchor (&)")]
    RecursiveAlias,
    #[error("its aliases (*) expand to too many values")]
    Expansion,
    #[error("<< needs a mapping, or a list of mappings")]
    InvalidMerge,
    #[error("the key {0} is set twice: remove one of them")]
    DuplicateKey(String),
    #[error("a key is empty (null): write it in quotes")]
    EmptyKey,
    #[error("a key is not a text but a mapping or a list: a text with {{ or [ needs quotes")]
    CollectionKey,
    #[error("infinity and NaN are no values of JSON: write a text in quotes")]
    NotFinite,
    #[error("a value with !!binary is not text in base64")]
    InvalidBinary,
    /// With the suffix of the tag.
    #[error("a value is not what its tag !!{0} says")]
    TagMismatch(String),
}

impl YamlFault {
    /// Returns the error of a line with this fault.
    pub(super) fn at(self, line: u64) -> YamlError {
        YamlError { line, fault: self }
    }
}
