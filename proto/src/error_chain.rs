//! An error with its causes, in one line.

use std::{error::Error, fmt};

/// Displays an error and its causes, joined by `: `. Most errors of hyper are vague without their causes.
///
/// A cause is left out if the text before already ends with it: many errors display their cause as well as return it as
/// their source.
pub struct ErrorChain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = self.0.to_string();
        f.write_str(&last)?;
        let mut next = self.0.source();
        while let Some(error) = next {
            let text = error.to_string();
            if !last.ends_with(&text) {
                write!(f, ": {text}")?;
                last = text;
            }
            next = error.source();
        }

        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        source: Option<Box<dyn Error + Send + Sync>>,
    }

    fn joined(texts: &[&'static str]) -> String {
        let error = texts.iter().rev().fold(None, |source, text| {
            Some(Box::new(Layer { text, source }) as Box<dyn Error + Send + Sync>)
        });
        ErrorChain(&*error.unwrap()).to_string()
    }

    #[test]
    fn cause_is_appended_unless_the_text_before_ends_with_it() {
        for (texts, expected) in [
            (&["alone"][..], "alone"),
            (&["read", "reset"], "read: reset"),
            (&["reset", "reset"], "reset"),
            (&["read: reset", "reset", "reset"], "read: reset"),
            (&["a: b: c", "b: c", "c"], "a: b: c"),
            (&["read: reset", "reset", "by peer"], "read: reset: by peer"),
            (&["reset twice", "reset"], "reset twice: reset"),
            (&["read", ""], "read"),
        ] {
            assert_eq!(joined(texts), expected, "{texts:?}");
        }
    }

    #[test]
    fn io_error_around_another_is_displayed_once() {
        let reset = || io::Error::from_raw_os_error(104);
        let text = reset().to_string();
        let around = Layer { text: "connection error", source: Some(io::Error::other(reset()).into()) };
        assert_eq!(ErrorChain(&around).to_string(), format!("connection error: {text}"));
        #[derive(Debug, thiserror::Error)]
        #[error("the connection broke: {0}")]
        struct Broke(#[source] io::Error);
        assert_eq!(ErrorChain(&Broke(reset())).to_string(), format!("the connection broke: {text}"));
    }
}
