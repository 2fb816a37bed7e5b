//! The rules of well-known programs, as data in the form of `graph.health_rules`.

use std::{
    collections::HashMap,
    sync::{LazyLock, OnceLock},
};

use include_dir::{Dir, include_dir};
use proto::agent_configuration::graph::HealthRule;

/// One file for each API group.
static FILES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/rules");

/// The rules by API group. Those of a group are compiled when its first object is assessed.
static RULES: LazyLock<HashMap<&str, GroupRules>> = LazyLock::new(|| {
    let files = FILES.files().filter_map(|file| {
        let group = file.path().file_stem()?.to_str()?;
        Some((group, GroupRules { text: file.contents_utf8()?, compiled: OnceLock::new() }))
    });
    files.collect()
});

/// The rules of one API group.
struct GroupRules {
    text: &'static str,
    compiled: OnceLock<Vec<HealthRule>>,
}

impl GroupRules {
    fn compiled(&self) -> &[HealthRule] {
        self.compiled.get_or_init(|| serde_saphyr::from_str(self.text).expect("a test reads the rules"))
    }
}

/// Returns the API groups with rules.
pub(crate) fn groups() -> impl Iterator<Item = &'static str> {
    RULES.keys().copied()
}

/// Returns the rule of a kind.
pub(crate) fn rule(group: &str, kind: &str) -> Option<&'static HealthRule> {
    RULES.get(group)?.compiled().iter().find(|rule| rule.kind.is(group, kind, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_the_rules_of_their_group() {
        let mut lines = 0;
        for (group, rules) in &*RULES {
            lines += rules.text.lines().count();
            for rule in rules.compiled() {
                assert!(rule.kind.to_string().ends_with(&format!(".{group}")), "{group}: {}", rule.kind);
                assert!(rule.message.is_some(), "the rule of {} has no message", rule.kind);
            }
        }
        assert!(RULES.len() > 20, "only {} groups", RULES.len());
        assert!(lines <= 1500, "{lines} lines");
    }

    #[test]
    fn other_kinds_have_no_rule() {
        assert!(rule("example.com", "Database").is_none());
        assert!(rule("velero.io", "Database").is_none());
    }
}
