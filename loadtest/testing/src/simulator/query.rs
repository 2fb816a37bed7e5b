//! The parameters of a request.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use crate::simulator::response::StatusError;

/// Parameters from a query string or a form, in order. A name may be repeated.
#[derive(Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        Self(pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).map(decode_pair).collect())
    }

    /// Appends the parameters of a form.
    pub(crate) fn extend(&mut self, form: Self) {
        self.0.extend(form.0);
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn all<'query>(&'query self, name: &'query str) -> impl Iterator<Item = &'query str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), Some("true" | "1"))
    }

    /// Returns a parameter that must be a number if it is present.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, StatusError> {
        let Some(text) = self.get(name).filter(|text| !text.is_empty()) else { return Ok(None) };
        let number = text.parse();
        number.map(Some).map_err(|_| StatusError::bad_request(format!("{name}: \"{text}\" is not a number")))
    }
}

fn decode_pair((key, value): (&str, &str)) -> (String, String) {
    (decode(&key.replace('+', " ")).into_owned(), decode(&value.replace('+', " ")).into_owned())
}

/// Decodes percent-encoding. Bytes that are not UTF-8 are replaced, and then match nothing.
pub(crate) fn decode(text: &str) -> Cow<'_, str> {
    percent_decode_str(text).decode_utf8_lossy()
}
