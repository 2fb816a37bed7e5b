//! The shell language, or what little of it the simulated shell speaks: words, quotes, `;`, `&&`, `||`,
//! and `>&2` at the end of a command.

/// A command, and what it depends on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub when: When,
    pub words: Vec<String>,
    pub to_stderr: bool,
}

/// Whether a step runs, going by the exit code so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    Always,
    Success,
    Failure,
}

/// Splits a script into its steps; the error says what is wrong with it.
pub(super) fn parse(script: &str) -> Result<Vec<Step>, &'static str> {
    let mut steps = Vec::new();
    let mut step = Step { when: When::Always, words: Vec::new(), to_stderr: false };
    let mut word = None::<String>;
    let mut rest = script.chars();
    while let Some(character) = rest.next() {
        match character {
            '\'' | '"' => {
                let (quoted, after) =
                    rest.as_str().split_once(character).ok_or("unterminated quoted string")?;
                word.get_or_insert_default().push_str(quoted);
                rest = after.chars();
            }
            '\\' => word.get_or_insert_default().extend(rest.next()),
            ';' | '\n' | '&' | '|' => {
                let when = match character {
                    '&' if rest.next() == Some('&') => When::Success,
                    '|' if rest.next() == Some('|') => When::Failure,
                    '&' | '|' => return Err("the simulated shell has neither jobs nor pipes"),
                    _ => When::Always,
                };
                step.push(word.take());
                steps.push(std::mem::replace(&mut step, Step { when, words: Vec::new(), to_stderr: false }));
            }
            '>' if rest.as_str().starts_with("&2") => {
                // The `1` of `1>&2` is not a word.
                step.push(word.take().filter(|word| word != "1"));
                step.to_stderr = true;
                rest = rest.as_str()[2..].chars();
            }
            '>' | '<' | '$' | '`' | '(' => return Err("the simulated shell only knows plain commands"),
            character if character.is_whitespace() => step.push(word.take()),
            character => word.get_or_insert_default().push(character),
        }
    }
    step.push(word);
    steps.push(step);
    steps.retain(|step| !step.words.is_empty());
    Ok(steps)
}

impl Step {
    fn push(&mut self, word: Option<String>) {
        self.words.extend(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(when: When, words: &[&str], to_stderr: bool) -> Step {
        Step { when, words: words.iter().map(|word| (*word).to_owned()).collect(), to_stderr }
    }

    #[test]
    fn scripts_are_split_into_steps() {
        let steps = parse("echo 'a b' \"c\"d '' 1>&2 && true || exit 3;\n").expect("a script");
        assert_eq!(
            steps,
            [
                step(When::Always, &["echo", "a b", "cd", ""], true),
                step(When::Success, &["true"], false),
                step(When::Failure, &["exit", "3"], false),
            ]
        );
    }

    #[test]
    fn what_it_does_not_speak_it_refuses() {
        for script in ["echo 'a", "sleep 1 &", "cat | cat", "echo $HOME", "echo a > b"] {
            assert!(parse(script).is_err(), "{script}");
        }
    }
}
