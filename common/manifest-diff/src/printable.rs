//! Characters that a terminal or a page does not show in their place.

/// Replaces characters that a terminal does not show in their place. The text has one line then.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_unprintable(c) { '?' } else { c }).collect()
}

/// Returns whether a terminal shows nothing for a character, moves its cursor, or changes the order of others.
pub fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c,
            // The category Cf of Unicode 16 and the separators of lines: invisible characters, and those that change the direction.
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}'
            | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e007f}'
            // Letters without a shape, and a pattern without dots.
            | '\u{115f}'..='\u{1160}' | '\u{2800}' | '\u{3164}' | '\u{ffa0}')
}
