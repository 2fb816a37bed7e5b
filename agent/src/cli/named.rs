//! `[NAME=]VALUE`: a flag about one of several servers.

use std::{fmt::Display, str::FromStr};

use proto::ServiceName;

/// Longest name: `prometheus.<name>` is the name of a service, and that has at most 63 characters.
const LONGEST: usize = 63 - "prometheus.".len();

/// A value, and which server it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named<T> {
    /// None is the one without a name.
    pub name: Option<String>,
    /// What follows the `=`.
    pub value: T,
}

impl<T> Named<T> {
    /// `prometheus` or `prometheus.<name>`.
    pub fn service(&self) -> ServiceName {
        let service = match &self.name {
            None => ServiceName::PROMETHEUS.to_owned(),
            Some(name) => format!("{}.{name}", ServiceName::PROMETHEUS),
        };
        service.parse().expect("checked when it was read")
    }
}

impl<T> FromStr for Named<T>
where
    T: FromStr,
    T::Err: Display,
{
    type Err = String;

    /// What stands before the first `=` is a name, unless it has a character that paths and URLs have.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) if !name.contains(['/', ':', '.']) => (Some(name), value),
            _ => (None, text),
        };
        if let Some(name) = name.filter(|name| !is_label(name)) {
            return Err(format!(
                "{name:?} is not a name: use at most {LONGEST} lower-case letters, digits and '-', starting and ending \
                 with a letter or digit"
            ));
        }
        if value.is_empty() {
            return Err("there is nothing after the '='".to_owned());
        }
        let value = value.parse().map_err(|error: T::Err| error.to_string())?;

        Ok(Self { name: name.map(str::to_owned), value })
    }
}

fn is_label(name: &str) -> bool {
    let label = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=LONGEST).contains(&name.len())
        && name.bytes().all(label)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::upstream::Endpoint;

    #[test]
    fn a_name_is_what_cannot_be_part_of_the_value() {
        for (text, name, value) in [
            ("http://p:9090/a=b", None, "http://p:9090/a=b"),
            ("thanos=http://p/a=b", Some("thanos"), "http://p/a=b"),
        ] {
            let named: Named<Endpoint> = text.parse().unwrap();
            assert_eq!((named.name.as_deref(), &*named.value.to_string()), (name, value), "{text}");
        }
        let file: Named<PathBuf> = "./a=b".parse().unwrap();
        assert_eq!(file, Named { name: None, value: "./a=b".into() });
    }

    #[test]
    fn the_longest_name_is_still_a_service() {
        let name = "x".repeat(LONGEST);
        let named: Named<PathBuf> = format!("{name}=/f").parse().unwrap();
        assert_eq!(named.service().as_str().len(), 63);
        for bad in [format!("{name}x=/f"), "A=/f".to_owned(), "=/f".to_owned(), "a-=/f".to_owned()] {
            let error = bad.parse::<Named<PathBuf>>().unwrap_err();
            assert!(error.contains("is not a name"), "{error}");
        }
        assert!("a=".parse::<Named<PathBuf>>().unwrap_err().contains("nothing after"));
    }
}
