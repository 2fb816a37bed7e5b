//! Texts that workloads of the cluster have chosen.

use proto::events::is_hidden;

/// The longest text of an alert, in bytes: the longest name of a Kubernetes object.
pub(crate) const MAX_TEXT: usize = 253;

/// Returns one line of at most [`MAX_TEXT`] bytes, in which hidden characters are spaces.
pub(crate) fn clean(text: &str) -> String {
    let mut line = String::with_capacity(text.len().min(MAX_TEXT));
    for character in text.chars().map(|c| if is_hidden(c) { ' ' } else { c }) {
        if line.len() + character.len_utf8() > MAX_TEXT {
            break;
        }
        line.push(character);
    }
    line.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_becomes_a_short_line() {
        assert_eq!(clean("a\u{1b}[31m\r\nb\u{202e}c\0"), "a [31m  b c");
        let cut = clean(&"é".repeat(10_000));
        assert_eq!(cut.len(), MAX_TEXT - 1, "a character is not cut in two");
    }
}
