//! Marks in place of expressions, so that a template is YAML whether its expressions are in quotes or not.
//!
//! `{{ .project.id }}` becomes `project.id` between two characters of Unicode's private use area, which a template must not contain.
//! Lines stay as they are.

use std::{borrow::Cow, path::Path};

use settings::ConfigError;

use crate::Variable;

/// The first and the last character of a mark.
const OPEN: char = '\u{e000}';
const CLOSE: char = '\u{e001}';

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part<'a> {
    Text(&'a str),
    Variable(Variable),
}

/// The fault of an expression, with its place in the line. The author of the template mends it.
#[derive(Debug)]
struct MarkError {
    /// The column, from 1.
    column: u64,
    fault: ExpressionFault,
}

#[derive(Debug, thiserror::Error)]
enum ExpressionFault {
    #[error("the characters U+E000 and U+E001 are not allowed")]
    ReservedCharacter,
    #[error("the expression is not closed with }}}} on its line")]
    NotClosed,
    #[error("there is no variable {0:?}; the variables are {known}", known = all_variables())]
    UnknownVariable(String),
    #[error(
        "{0:?} is not a variable: an expression is {{{{ .project.id }}}} or the like, without functions and conditions"
    )]
    NotVariable(String),
}

/// Replaces the expressions of a template by marks.
///
/// # Errors
///
/// An expression is not the name of a variable, or is not closed on its line. The error has the line.
pub(crate) fn mark(file: &Path, text: &str) -> Result<String, ConfigError> {
    let mut marked = String::with_capacity(text.len());
    for (index, line) in text.split_inclusive('\n').enumerate() {
        mark_line(line, &mut marked).map_err(|error| {
            ConfigError::at(file, (index as u64 + 1, error.column), error.fault.to_string())
        })?;
    }
    Ok(marked)
}

/// Appends a line with marks.
fn mark_line(line: &str, marked: &mut String) -> Result<(), MarkError> {
    let error = |rest: &str, fault: ExpressionFault| {
        let column = line[..line.len() - rest.len()].chars().count() as u64 + 1;
        MarkError { column, fault }
    };
    if let Some(at) = line.find([OPEN, CLOSE]) {
        return Err(error(&line[at..], ExpressionFault::ReservedCharacter));
    }
    let mut rest = line;
    while let Some(start) = rest.find("{{") {
        marked.push_str(&rest[..start]);
        let expression = &rest[start..];
        let Some(length) = expression.find("}}") else {
            return Err(error(expression, ExpressionFault::NotClosed));
        };
        let inner = &expression[2..length];
        let variable = variable(inner).map_err(|fault| error(expression, fault))?;
        marked.push(OPEN);
        marked.push_str(variable.path());
        marked.push(CLOSE);
        rest = &expression[length + 2..];
    }
    marked.push_str(rest);
    Ok(())
}

/// Returns the variable of an expression.
fn variable(inner: &str) -> Result<Variable, ExpressionFault> {
    let trimmed = inner.trim();
    let known = trimmed.strip_prefix('.').and_then(Variable::of_path);
    known.ok_or_else(|| {
        let is_path = trimmed
            .strip_prefix('.')
            .is_some_and(|path| path.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.')));
        let shown: String = trimmed.chars().take(60).collect();
        if is_path { ExpressionFault::UnknownVariable(shown) } else { ExpressionFault::NotVariable(shown) }
    })
}

/// Returns the names of all variables for a message.
fn all_variables() -> String {
    Variable::ALL.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Returns the parts of a text with marks.
pub(crate) fn parts(text: &str) -> impl Iterator<Item = Part<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        if let Some(marked) = rest.strip_prefix(OPEN)
            && let Some((path, after)) = marked.split_once(CLOSE)
            && let Some(variable) = Variable::of_path(path)
        {
            rest = after;
            return Some(Part::Variable(variable));
        }
        let first = rest.chars().next().map_or(0, char::len_utf8);
        let end = rest[first..].find(OPEN).map_or(rest.len(), |at| at + first);
        let (text, after) = rest.split_at(end);
        rest = after;
        Some(Part::Text(text))
    })
}

/// Returns whether a text has marks.
pub(crate) fn has_marks(text: &str) -> bool {
    text.contains(OPEN)
}

/// Returns a text as its template has it, for messages.
pub(crate) fn unmarked(text: &str) -> Cow<'_, str> {
    if !has_marks(text) {
        return Cow::Borrowed(text);
    }
    let parts = parts(text).map(|part| match part {
        Part::Text(text) => text.to_owned(),
        Part::Variable(variable) => format!("{{{{ {variable} }}}}"),
    });
    Cow::Owned(parts.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        mark(Path::new("t.yaml"), text).unwrap_err().to_string()
    }

    #[test]
    fn expressions_become_marks_and_back() {
        let text = "a: {{ .project.id }}-{{.user.username}}\n'{{ .agent.id }}': {b: {c: 1}}\n";
        let marked = mark(Path::new("t.yaml"), text).unwrap();
        assert!(!marked.contains("{{"), "{marked}");
        assert_eq!(
            unmarked(&marked),
            "a: {{ .project.id }}-{{ .user.username }}\n'{{ .agent.id }}': {b: {c: 1}}\n"
        );
        let line = marked.lines().next().unwrap();
        let expected = [
            Part::Text("a: "),
            Part::Variable(Variable::ProjectId),
            Part::Text("-"),
            Part::Variable(Variable::Username),
        ];
        assert_eq!(parts(line).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn other_expressions_are_refused_with_their_place() {
        assert!(
            error("a: b\nc: {{ .project.nam }}")
                .starts_with("t.yaml:2:4: there is no variable \".project.nam\"")
        );
        for text in [
            "{{ if .a }}",
            "{{- .project.id }}",
            "{{ .project.id | quote }}",
            "{{ $x }}",
            "{{}}",
            "{{ \"{{\" }}",
            "{{ project.id }}",
        ] {
            assert!(error(text).contains("is not a variable"), "{text}: {}", error(text));
        }
        assert!(error("a: {{ .project.id\n}}").contains("not closed"));
        assert!(error("a: \u{e000}project.id\u{e001}").starts_with("t.yaml:1:4: the characters U+E000"));
    }

    #[test]
    fn text_that_is_no_mark_is_text() {
        for text in ["\u{e000}", "\u{e000}x\u{e001}", "a\u{e001}b", "\u{e000}\u{e000}"] {
            assert!(parts(text).all(|part| matches!(part, Part::Text(_))), "{text:?}");
            let together: String = parts(text)
                .map(|part| match part {
                    Part::Text(text) => text,
                    Part::Variable(_) => "",
                })
                .collect();
            assert_eq!(together, text);
        }
    }
}
