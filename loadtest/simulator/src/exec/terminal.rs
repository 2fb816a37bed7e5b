//! The line discipline of a terminal, or plain lines without one.

use std::collections::VecDeque;

use bytes::Bytes;

/// The result of reading a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Text(String),
    /// Ctrl-C.
    Interrupted,
    /// Ctrl-D, or the end of stdin.
    End,
}

#[derive(Debug)]
pub(super) struct Terminal {
    tty: bool,
    typed: Vec<u8>,
    lines: VecDeque<Line>,
}

impl Terminal {
    pub(super) fn new(tty: bool) -> Self {
        Self { tty, typed: Vec::new(), lines: VecDeque::new() }
    }

    pub(super) fn next_line(&mut self) -> Option<Line> {
        self.lines.pop_front()
    }

    /// Handles input. Returns its echo.
    pub(super) fn feed(&mut self, input: &[u8]) -> Vec<u8> {
        let mut echo = Vec::new();
        for &byte in input {
            match byte {
                b'\n' => self.end_line(),
                b'\r' if self.tty => {
                    echo.extend(b"\r\n");
                    self.end_line();
                }
                INTERRUPT if self.tty => {
                    echo.extend(b"^C\r\n");
                    self.typed.clear();
                    self.lines.push_back(Line::Interrupted);
                }
                END if self.tty => {
                    if self.typed.is_empty() {
                        self.lines.push_back(Line::End);
                    }
                }
                BACKSPACE | DELETE if self.tty => {
                    if self.typed.pop().is_some() {
                        echo.extend(b"\x08 \x08");
                    }
                }
                byte => {
                    echo.push(byte);
                    self.typed.push(byte);
                    if self.typed.len() == LONGEST {
                        self.end_line();
                    }
                }
            }
        }
        if self.tty { echo } else { Vec::new() }
    }

    /// Returns the rest when stdin has ended.
    pub(super) fn last_line(&mut self) -> Line {
        if self.typed.is_empty() {
            return Line::End;
        }
        self.end_line();
        self.lines.pop_front().unwrap_or(Line::End)
    }

    /// Returns input that was not read as lines.
    pub(super) fn take_unread(&mut self) -> Option<Bytes> {
        let mut unread = Vec::new();
        for line in self.lines.drain(..) {
            if let Line::Text(text) = line {
                unread.extend(text.into_bytes());
                unread.push(b'\n');
            }
        }
        unread.append(&mut self.typed);
        Some(unread).filter(|unread| !unread.is_empty()).map(Bytes::from)
    }

    fn end_line(&mut self) {
        let line = String::from_utf8_lossy(&self.typed).into_owned();
        self.typed.clear();
        self.lines.push_back(Line::Text(line));
    }
}

const INTERRUPT: u8 = 0x03;
const END: u8 = 0x04;
const BACKSPACE: u8 = 0x08;
const DELETE: u8 = 0x7f;

/// The length at which a line is split, so that input without line ends uses bounded memory.
const LONGEST: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_echoes_and_edits() {
        let mut terminal = Terminal::new(true);
        assert_eq!(terminal.feed(b"ex\x7fcho\r"), b"ex\x08 \x08cho\r\n");
        assert_eq!(terminal.next_line(), Some(Line::Text("echo".to_owned())));
        assert_eq!(terminal.feed(b"x\x03\x04"), b"x^C\r\n");
        assert_eq!(terminal.next_line(), Some(Line::Interrupted));
        assert_eq!(terminal.next_line(), Some(Line::End));
        assert_eq!(terminal.next_line(), None);
    }

    #[test]
    fn lines_without_terminal_are_split() {
        let mut terminal = Terminal::new(false);
        assert_eq!(terminal.feed(b"one\ntwo\n\x03three"), b"");
        assert_eq!(terminal.next_line(), Some(Line::Text("one".to_owned())));
        assert_eq!(terminal.take_unread().as_deref(), Some(b"two\n\x03three".as_slice()));
        assert_eq!(terminal.last_line(), Line::End);
    }
}
