/// Returns untrusted bytes as one line without control characters, of at most 300 characters.
pub fn short_line(bytes: &[u8]) -> String {
    const MAX_CHARS: usize = 300;
    let text = String::from_utf8_lossy(bytes);
    let words: Vec<_> = text.split_whitespace().collect();
    words.join(" ").chars().filter(|c| !c.is_control()).take(MAX_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untrusted_text_becomes_one_short_line() {
        assert_eq!(short_line(b"  draining;\r\n try\x1b[31m again\xff\n"), "draining; try[31m again\u{fffd}");
        assert_eq!(short_line(&[b'x'; 4096]).len(), 300);
    }
}
