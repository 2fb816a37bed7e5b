//! Licence expressions of crates (SPDX), as `Cargo.toml` has them.

/// Returns whether licences satisfy an expression. `is_allowed` gets each licence of it, with its exception: `MIT`, `Apache-2.0 WITH
/// LLVM-exception`.
///
/// `/` is an old spelling of `OR`. An expression that cannot be read is not satisfied.
pub fn is_satisfied(expression: &str, is_allowed: &dyn Fn(&str) -> bool) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser { words: &words, is_allowed };
    parser.alternatives() == Some(true) && parser.words.is_empty()
}

/// Reads an expression from left to right. `None` is an expression that cannot be read.
struct Parser<'a> {
    words: &'a [&'a str],
    is_allowed: &'a dyn Fn(&str) -> bool,
}

impl Parser<'_> {
    fn alternatives(&mut self) -> Option<bool> {
        let mut satisfied = self.conjunction()?;
        while self.takes("OR") {
            // Both sides have to be read.
            satisfied |= self.conjunction()?;
        }
        Some(satisfied)
    }

    fn conjunction(&mut self) -> Option<bool> {
        let mut satisfied = self.term()?;
        while self.takes("AND") {
            satisfied &= self.term()?;
        }
        Some(satisfied)
    }

    fn term(&mut self) -> Option<bool> {
        if self.takes("(") {
            let satisfied = self.alternatives()?;
            return self.takes(")").then_some(satisfied);
        }
        let mut licence = self.name()?.to_owned();
        if self.takes("WITH") {
            licence = format!("{licence} WITH {}", self.name()?);
        }
        Some((self.is_allowed)(&licence))
    }

    fn name(&mut self) -> Option<&str> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        (!["OR", "AND", "WITH", "(", ")"].contains(first)).then_some(first)
    }

    fn takes(&mut self, word: &str) -> bool {
        let is_next = self.words.first() == Some(&word);
        self.words = &self.words[usize::from(is_next)..];
        is_next
    }
}

#[cfg(test)]
mod tests {
    use super::is_satisfied;

    #[test]
    fn expression_is_satisfied_by_allowed_licences() {
        let is_allowed = |licence: &str| ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].contains(&licence);
        for (expression, expected) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("GPL-3.0 OR MIT", true),
            ("GPL-3.0/MIT", true),
            ("MIT AND GPL-3.0", false),
            ("MIT AND ISC", true),
            ("(GPL-3.0 OR MIT) AND ISC", true),
            ("GPL-3.0 OR MIT AND ISC", true),
            ("(MIT OR ISC) AND GPL-3.0", false),
            ("Apache-2.0", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("MIT WITH LLVM-exception", false),
            ("", false),
            ("MIT ISC", false),
            ("MIT OR", false),
            ("(MIT", false),
            ("OR MIT", false),
        ] {
            assert_eq!(is_satisfied(expression, &is_allowed), expected, "{expression}");
        }
    }
}
