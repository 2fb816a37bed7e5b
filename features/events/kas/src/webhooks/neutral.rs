//! Takes the meaning from formatting, links and mentions in texts of others.

/// Returns the text with a space without width after or before each character that has a meaning in Markdown or in messages, such as
/// `@all` and `[text](url)`: the text comes from agents, clusters and Git.
pub(super) fn neutral(text: &str) -> String {
    let mut neutral = String::with_capacity(text.len());
    for character in text.chars() {
        let before = neutral.chars().next_back();
        if matches!((before, character), (Some('!'), '[') | (Some(']'), '(' | '[' | ':')) {
            neutral.push('\u{200b}');
        }
        match character {
            // Formatting of a part of the line would hide the rest.
            '*' | '_' | '~' | '`' => neutral.extend(['\u{200b}', character]),
            // A mention, and a tag of HTML.
            '@' | '<' => neutral.extend([character, '\u{200b}']),
            _ => neutral.push(character),
        }
    }
    neutral
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_mentions_and_formatting_have_no_meaning() {
        for (text, expected) in [
            ("<img src=x>", "<\u{200b}img src=x>"),
            ("@all", "@\u{200b}all"),
            ("*a* ![](b)", "\u{200b}*a\u{200b}* !\u{200b}[]\u{200b}(b)"),
            ("1 of 2 objects", "1 of 2 objects"),
        ] {
            assert_eq!(neutral(text), expected);
        }
    }
}
