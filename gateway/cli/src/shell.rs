//! Arguments of commands that a reader copies into a shell.

use std::fmt::Write as _;

use crate::table::is_unprintable;

/// Returns a text as one argument of a shell, without an effect of its own.
///
/// Texts with quotes, backslashes or characters that a terminal does not show are written as `$'…'` with escapes, which bash, ksh and zsh
/// read. Quotes are escaped there as well, so that other shells end the argument at its end, or refuse it.
pub fn shell_argument(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./:-".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    if !text.chars().any(needs_escape) {
        return format!("'{text}'");
    }
    let mut argument = "$'".to_owned();
    for c in text.chars() {
        if needs_escape(c) {
            c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| {
                // Writing to a string does not fail.
                let _ = write!(argument, "\\{byte:03o}");
            });
        } else {
            argument.push(c);
        }
    }
    argument + "'"
}

/// Returns an argument for a shell. Of `key=value`, only the value is quoted, and only if it has to be.
pub fn shell_word(argument: &str) -> String {
    let is_key =
        |key: &str| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'.');
    match argument.split_once('=') {
        Some((key, value)) if is_key(key) => format!("{key}={}", shell_argument(value)),
        _ => shell_argument(argument),
    }
}

/// Returns whether a character ends a quoted text in some shell (fish reads `\'`, PowerShell four more quotes), or is not shown.
fn needs_escape(c: char) -> bool {
    matches!(c, '\'' | '\\' | '\u{2018}'..='\u{201b}') || is_unprintable(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argument_has_no_effect_of_its_own() {
        for (text, expected) in [
            ("group/shop-1.2:x", "group/shop-1.2:x"),
            ("", "''"),
            ("my shop", "'my shop'"),
            ("$(reboot) `reboot` ; & | * ~ ! # \"", "'$(reboot) `reboot` ; & | * ~ ! # \"'"),
            ("日本", "'日本'"),
            ("it's; reboot", r"$'it\047s; reboot'"),
            (r"a\'; reboot", r"$'a\134\047; reboot'"),
            ("a\u{2019}; reboot", r"$'a\342\200\231; reboot'"),
            ("a\n\u{202e}b", r"$'a\012\342\200\256b'"),
        ] {
            assert_eq!(shell_argument(text), expected);
        }
    }
}
