//! Messages about mistakes in a file, in terms of the file and not of the library that parses it.

use std::borrow::Cow;

use serde_saphyr::{Error, MessageFormatter, UserMessageFormatter};

/// Formats the frequent mistakes, and leaves the others to the library.
pub(super) struct PlainMessages;

impl MessageFormatter for PlainMessages {
    fn format_message<'a>(&self, error: &'a Error) -> Cow<'a, str> {
        match error {
            Error::InvalidScalar { ty, .. } => scalar(ty),
            Error::Unexpected { expected: "mapping start", .. } => {
                "it must be a mapping: keys with their values, one on each line".into()
            }
            Error::Unexpected { expected: "sequence start", .. } => "it must be a list: [a, b]".into(),
            Error::NullIntoString { .. } => "it must not be empty".into(),
            Error::DuplicateMappingKey { key: Some(key), .. } => {
                format!("the key {key} is set twice: remove one of them").into()
            }
            Error::SerdeMissingField { field, .. } => format!("the key {field} is missing").into(),
            Error::Budget { .. } => "the file has too many entries".into(),
            error => UserMessageFormatter.format_message(error),
        }
    }
}

/// Returns the message about a value that is not of a Rust type.
fn scalar(ty: &str) -> Cow<'static, str> {
    let most = match ty {
        "u8" => Some(u8::MAX.into()),
        "u16" => Some(u16::MAX.into()),
        "u32" => Some(u32::MAX.into()),
        "u64" | "usize" => Some(u64::MAX),
        _ => None,
    };
    match (ty, most) {
        (_, Some(u64::MAX)) => "it must be a whole number, without a unit and not negative".into(),
        (_, Some(most)) => format!("it must be a whole number from 0 to {most}, without a unit").into(),
        ("bool" | "boolean", _) => "it must be true or false".into(),
        ("f32" | "f64", _) => "it must be a number".into(),
        _ => format!("it is not a valid {ty}").into(),
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, path::Path};

    use serde::{Deserialize, de::DeserializeOwned};

    use crate::yaml::parse;

    #[derive(Debug, Deserialize)]
    struct Mixed {
        #[allow(dead_code, reason = "only its presence matters")]
        name: String,
    }

    fn error<T: DeserializeOwned>(text: &str) -> String {
        match parse::<T>(Path::new("f"), text) {
            Ok(_) => panic!("{text} is accepted"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn messages_have_no_terms_of_the_library() {
        type Numbers = HashMap<String, u64>;
        for value in ["-1", "1GiB", "null", "1.5", "many"] {
            let expected = "f:1:4: a: it must be a whole number, without a unit and not negative";
            assert_eq!(error::<Numbers>(&format!("a: {value}")), expected, "{value}");
        }
        type Ports = HashMap<String, u16>;
        assert_eq!(
            error::<Ports>("a: 65536"),
            "f:1:4: a: it must be a whole number from 0 to 65535, without a unit"
        );
        type Switches = HashMap<String, bool>;
        assert_eq!(error::<Switches>("a: on it"), "f:1:4: a: it must be true or false");
        assert_eq!(error::<Numbers>("a: 1\na: 2"), "f:2:1: the key a is set twice: remove one of them");
        assert!(error::<Numbers>("- a").contains("it must be a mapping"), "{}", error::<Numbers>("- a"));
        assert!(error::<Vec<u8>>("a: 1").contains("it must be a list"), "{}", error::<Vec<u8>>("a: 1"));
        assert_eq!(error::<Mixed>("other: 1"), "f:1:1: the key name is missing");
        assert_eq!(error::<Mixed>("name: null"), "f:1:7: name: it must not be empty");
    }
}
