//! The commands in a line of a shell.

use std::{iter::Peekable, mem, str::Chars};

/// Splits a line into commands, each with its words. The commands of substitutions follow. Redirections and comments are left out, and a
/// variable keeps its name.
pub(super) fn commands(line: &str) -> Vec<Vec<String>> {
    let mut lexer = Lexer::default();
    lexer.read(&mut line.chars().peekable());
    lexer.end_command();
    let inner = lexer.substitutions.iter().flat_map(|inner| commands(inner));
    lexer.commands.into_iter().chain(inner).collect()
}

#[derive(Default)]
struct Lexer {
    commands: Vec<Vec<String>>,
    words: Vec<String>,
    word: Option<String>,
    /// The texts in `$(…)` and `<(…)`.
    substitutions: Vec<String>,
}

impl Lexer {
    fn read(&mut self, chars: &mut Peekable<Chars<'_>>) {
        while let Some(c) = chars.next() {
            match c {
                '\'' => self.extend(read_until(chars, '\'')),
                '"' => self.read_quoted(chars),
                '$' | '<' if chars.peek() == Some(&'(') => self.read_substitution(chars),
                // A placeholder, such as <code>.
                '<' if chars.peek().is_some_and(char::is_ascii_alphabetic) => {
                    let name = read_until(chars, '>');
                    self.extend(format!("<{name}>"));
                }
                '<' | '>' => self.skip_redirection(chars),
                '\\' => self.extend(chars.next().into_iter().collect()),
                '#' if self.word.is_none() => return,
                '|' | ';' | '&' | '(' | ')' => self.end_command(),
                c if c.is_whitespace() => self.end_word(),
                c => self.extend(c.into()),
            }
        }
    }

    fn read_quoted(&mut self, chars: &mut Peekable<Chars<'_>>) {
        self.extend(String::new());
        while let Some(c) = chars.next() {
            match c {
                '"' => return,
                '$' if chars.peek() == Some(&'(') => self.read_substitution(chars),
                '\\' => self.extend(chars.next().into_iter().collect()),
                c => self.extend(c.into()),
            }
        }
    }

    fn read_substitution(&mut self, chars: &mut Peekable<Chars<'_>>) {
        let (mut depth, mut inner) = (0, String::new());
        for c in chars.by_ref() {
            match c {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                break;
            }
            inner.push(c);
        }
        self.substitutions.push(inner.split_off(1));
        self.extend("substitution".to_owned());
    }

    fn skip_redirection(&mut self, chars: &mut Peekable<Chars<'_>>) {
        // `2>`
        self.word = self.word.take().filter(|word| !word.chars().all(|c| c.is_ascii_digit()));
        self.end_word();
        while chars.next_if(|c| c.is_whitespace() || "<>&".contains(*c)).is_some() {}
        while chars.next_if(|c| !c.is_whitespace() && !"|;&()".contains(*c)).is_some() {}
    }

    fn extend(&mut self, text: String) {
        self.word.get_or_insert_default().push_str(&text);
    }

    fn end_word(&mut self) {
        self.words.extend(self.word.take());
    }

    fn end_command(&mut self) {
        self.end_word();
        let words = mem::take(&mut self.words);
        self.commands.extend((!words.is_empty()).then_some(words));
    }
}

/// Reads up to a character, which is left out.
fn read_until(chars: &mut Peekable<Chars<'_>>, end: char) -> String {
    chars.by_ref().take_while(|c| *c != end).collect()
}
