//! `[NAME=]VALUE`: the value of a flag for one of several servers.

use std::{fmt::Display, str::FromStr};

use proto::ServiceName;

/// The longest name: `prometheus.<name>` is the name of a service, which has at most 63 characters.
const MAX_NAME: usize = 63 - "prometheus.".len();

/// A value, and the name of its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedValue<T> {
    /// The name; `None` for the server without a name.
    pub name: Option<String>,
    /// The value, after the `=`.
    pub value: T,
}

impl<T> NamedValue<T> {
    /// Returns the name of the service: `prometheus` or `prometheus.<name>`.
    pub fn service(&self) -> ServiceName {
        let service = match &self.name {
            None => ServiceName::PROMETHEUS.to_owned(),
            Some(name) => format!("{}.{name}", ServiceName::PROMETHEUS),
        };
        service.parse().expect("checked when it was parsed")
    }
}

impl<T> FromStr for NamedValue<T>
where
    T: FromStr,
    T::Err: Display,
{
    type Err = String;

    /// Parses a value. The text before the first `=` is a name, unless it has a character of paths and URLs.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) if !name.contains(['/', ':', '.']) => (Some(name), value),
            _ => (None, text),
        };
        if let Some(name) = name.filter(|name| !is_label(name)) {
            return Err(format!(
                "{name:?} is not a name: use at most {MAX_NAME} lower-case letters, digits and '-', starting and ending \
                 with a letter or digit"
            ));
        }
        if value.is_empty() {
            return Err("there is no value after the '='".to_owned());
        }
        let value = value.parse().map_err(|error: T::Err| error.to_string())?;

        Ok(Self { name: name.map(str::to_owned), value })
    }
}

fn is_label(name: &str) -> bool {
    let label = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(label)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use agentk_core::upstream::ServerUrl;

    #[test]
    fn text_before_the_equals_sign_is_a_name_unless_it_is_a_url_or_path() {
        for (text, name, value) in [
            ("http://p:9090/a=b", None, "http://p:9090/a=b"),
            ("thanos=http://p/a=b", Some("thanos"), "http://p/a=b"),
        ] {
            let named: NamedValue<ServerUrl> = text.parse().unwrap();
            assert_eq!((named.name.as_deref(), &*named.value.to_string()), (name, value), "{text}");
        }
        let file: NamedValue<PathBuf> = "./a=b".parse().unwrap();
        assert_eq!(file, NamedValue { name: None, value: "./a=b".into() });
    }

    #[test]
    fn longest_name_is_a_valid_service() {
        let name = "x".repeat(MAX_NAME);
        let named: NamedValue<PathBuf> = format!("{name}=/f").parse().unwrap();
        assert_eq!(named.service().as_str().len(), 63);
        for bad in [format!("{name}x=/f"), "A=/f".to_owned(), "=/f".to_owned(), "a-=/f".to_owned()] {
            let error = bad.parse::<NamedValue<PathBuf>>().unwrap_err();
            assert!(error.contains("is not a name"), "{error}");
        }
        assert!("a=".parse::<NamedValue<PathBuf>>().unwrap_err().contains("no value after"));
    }
}
