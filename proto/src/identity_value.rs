//! Values of identities, which must be the same at every hop.

use http::HeaderValue;

/// The name of a user or a group, or another value of an identity: a text that no hop changes.
///
/// A header without the blanks around its value is the same header (RFC 9110 section 5.5), so that ` system:masters` would become
/// `system:masters` on its way, and the name that kas has checked would not be the one that the cluster sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentityValue<'a>(&'a str);

/// A text that could become another one on its way, or that names nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must not be empty, begin or end with a blank, or hold control characters")]
pub struct InvalidIdentityValue;

impl<'a> IdentityValue<'a> {
    /// Checks a text. It is compared byte for byte: Unicode is not normalized, as in Kubernetes.
    ///
    /// # Errors
    ///
    /// The text is empty, begins or ends with a blank, or holds control characters.
    pub fn new(text: &'a str) -> Result<Self, InvalidIdentityValue> {
        let valid = !text.is_empty() && text.trim() == text && !text.contains(char::is_control);
        if valid { Ok(Self(text)) } else { Err(InvalidIdentityValue) }
    }

    /// Returns the text.
    pub fn as_str(self) -> &'a str {
        self.0
    }
}

impl<'a> TryFrom<&'a HeaderValue> for IdentityValue<'a> {
    type Error = InvalidIdentityValue;

    fn try_from(value: &'a HeaderValue) -> Result<Self, InvalidIdentityValue> {
        std::str::from_utf8(value.as_bytes()).map_err(|_| InvalidIdentityValue).and_then(Self::new)
    }
}

impl From<IdentityValue<'_>> for HeaderValue {
    fn from(value: IdentityValue<'_>) -> Self {
        Self::from_str(value.0).expect("without control characters")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_value_is_a_text_that_no_hop_changes() {
        for text in ["a", "system:masters", "J\u{fc}rgen M", "Ju\u{308}rgen", "a\u{200b}", "gitlab:user:a"] {
            let value = HeaderValue::from(IdentityValue::new(text).unwrap());
            assert_eq!(IdentityValue::try_from(&value).map(IdentityValue::as_str), Ok(text));
        }
        for text in [
            "",
            " ",
            " a",
            "a ",
            "\ta",
            "a\t",
            "a\tb",
            "\u{a0}a",
            "a\u{2003}",
            "a\nb",
            "a\0",
            "\u{85}",
            "\u{7f}",
        ] {
            assert_eq!(IdentityValue::new(text), Err(InvalidIdentityValue), "{text:?}");
        }
        assert!(IdentityValue::try_from(&HeaderValue::from_bytes(b"\xff").unwrap()).is_err());
    }
}
