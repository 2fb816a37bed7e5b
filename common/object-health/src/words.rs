//! The meaning of the words by which controllers name types, reasons and phases: `InstallFailed`, `Setting up primary`, `NotReady`.

/// The most characters of a text that are read.
const MAX_TEXT: usize = 200;

/// The meaning of a text. A text with several meanings has the first of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Meaning {
    /// It has failed, and will not work without a change.
    Failure,
    /// It was stopped on purpose.
    Stopped,
    /// It is at work.
    Busy,
    /// Something good is denied: `NotReady`.
    NotGood,
    /// It works.
    Good,
}

/// Beginnings of words that mean failure.
const FAILURE_STEMS: [&str; 5] = ["crash", "error", "fail", "incorrect", "invalid"];

/// Words that begin so, and are about failures of something else.
const NO_FAILURE: [&str; 3] = ["failback", "failover", "failsafe"];

const FAILURE: [&str; 63] = [
    "aborted",
    "backoff",
    "blocked",
    "broken",
    "canceled",
    "cancelled",
    "cannot",
    "conflict",
    "conflicted",
    "conflicting",
    "conflicts",
    "corrupted",
    "critical",
    "dead",
    "degraded",
    "denied",
    "duplicate",
    "duplicated",
    "err",
    "evicted",
    "exceeded",
    "expired",
    "fallback",
    "fatal",
    "faulted",
    "forbidden",
    "impossible",
    "insufficient",
    "killed",
    "lost",
    "misconfigured",
    "mismatch",
    "missing",
    "noncompliant",
    "offline",
    "oomkilled",
    "orphan",
    "orphaned",
    "outage",
    "partial",
    "partially",
    "problem",
    "problems",
    "red",
    "refused",
    "rejected",
    "stalled",
    "stuck",
    "terminal",
    "timedout",
    "timeout",
    "unable",
    "unauthorized",
    "unhealthy",
    "unreachable",
    "unrecoverable",
    "unresolved",
    "unschedulable",
    "unsupported",
    "violated",
    "violating",
    "violation",
    "violations",
];

const STOPPED: [&str; 12] = [
    "approval",
    "halted",
    "hibernate",
    "hibernated",
    "hibernating",
    "hibernation",
    "paused",
    "shutoff",
    "sleeping",
    "stopped",
    "suspend",
    "suspended",
];

const BUSY: [&str; 19] = [
    "bootstrap",
    "incomplete",
    "init",
    "initial",
    "inprogress",
    "new",
    "ongoing",
    "pending",
    "progress",
    "queued",
    "requested",
    "scheduled",
    "started",
    "transition",
    "unbound",
    "unfinished",
    "wait",
    "waits",
    "yellow",
];

/// Words that end like those of work, and mean none.
const NO_WORK: [&str; 8] =
    ["during", "existing", "king", "nothing", "remaining", "something", "string", "warning"];

const NOT_GOOD: [&str; 3] = ["unavailable", "uninitialized", "unready"];

const GOOD: [&str; 66] = [
    "accepted",
    "achieved",
    "active",
    "admitted",
    "alive",
    "applied",
    "approved",
    "attached",
    "available",
    "bound",
    "complete",
    "completed",
    "compliant",
    "configured",
    "connected",
    "created",
    "deployed",
    "done",
    "enabled",
    "established",
    "exists",
    "finished",
    "green",
    "healthy",
    "imported",
    "initialized",
    "installed",
    "issued",
    "joined",
    "launched",
    "merged",
    "normal",
    "ok",
    "okay",
    "online",
    "open",
    "operational",
    "pass",
    "passed",
    "programmed",
    "protected",
    "provisioned",
    "ready",
    "reconciled",
    "registered",
    "resolved",
    "restored",
    "running",
    "serving",
    "stable",
    "succeeded",
    "succeeds",
    "success",
    "successful",
    "successfully",
    "synced",
    "synchronized",
    "up",
    "updated",
    "upgraded",
    "uptodate",
    "valid",
    "validated",
    "verified",
    "working",
    "works",
];

/// Words that deny the next one with a meaning.
pub(crate) const DENIALS: [&str; 7] = ["isnt", "never", "no", "non", "nor", "not", "without"];

/// Words that mean failure if they are denied: `NotFound`.
const DENIED: [&str; 7] = ["allowed", "exist", "exists", "found", "matching", "permitted", "supported"];

/// Returns the words of a text in small letters. A capital letter begins a word: `HTTPRouteReady` has three.
pub(crate) fn words(text: &str) -> Vec<String> {
    let letters: Vec<char> = text.chars().take(MAX_TEXT).collect();
    let (mut words, mut word) = (Vec::new(), String::new());
    for (index, &letter) in letters.iter().enumerate() {
        let before = index.checked_sub(1).map(|index| letters[index]);
        let after = letters.get(index + 1);
        let begins = letter.is_ascii_uppercase()
            && before.is_some_and(|before| {
                before.is_ascii_lowercase()
                    || before.is_ascii_digit()
                    || (before.is_ascii_uppercase() && after.is_some_and(char::is_ascii_lowercase))
            });
        let is_part = letter.is_ascii_alphanumeric();
        if (begins || !is_part) && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if is_part {
            word.push(letter.to_ascii_lowercase());
        }
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}

/// Returns the meaning of a text.
pub(crate) fn meaning(text: &str) -> Option<Meaning> {
    of_words(&words(text))
}

/// Returns the meaning of words in their order.
pub(crate) fn of_words(words: &[String]) -> Option<Meaning> {
    let (mut found, mut denied) = (None, false);
    let mut add = |meaning: Meaning| found = Some(found.map_or(meaning, |known: Meaning| known.min(meaning)));
    for word in words {
        if DENIALS.contains(&&**word) {
            denied = true;
        } else if DENIED.contains(&&**word) && denied {
            add(Meaning::Failure);
            denied = false;
        } else if let Some(meaning) = of_word(word) {
            match (denied, meaning) {
                (false, meaning) => add(meaning),
                (true, Meaning::Good) => add(Meaning::NotGood),
                // Nothing bad is denied to be good: `NoErrors` comes with whatever else there is.
                (true, _) => {}
            }
            denied = false;
        }
    }
    found
}

/// Returns the meaning of one word in small letters.
pub(crate) fn of_word(word: &str) -> Option<Meaning> {
    let is_failure =
        || FAILURE_STEMS.iter().any(|stem| word.starts_with(stem)) && !NO_FAILURE.contains(&word);
    if FAILURE.binary_search(&word).is_ok() || is_failure() {
        Some(Meaning::Failure)
    } else if STOPPED.contains(&word) {
        Some(Meaning::Stopped)
    } else if GOOD.binary_search(&word).is_ok() {
        Some(Meaning::Good)
    } else if NOT_GOOD.contains(&word) {
        Some(Meaning::NotGood)
    } else if BUSY.contains(&word) || (word.len() > 4 && word.ends_with("ing") && !NO_WORK.contains(&word)) {
        Some(Meaning::Busy)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_begin_with_capital_letters_and_after_signs() {
        for (text, expected) in [
            ("Setting up primary", "setting up primary"),
            ("EKSControlPlaneReady", "eks control plane ready"),
            ("cnpg.io/hibernation", "cnpg io hibernation"),
            ("IN_PROGRESS", "in progress"),
            ("HTTP2Ready", "http2 ready"),
            ("  ", ""),
            ("Fähre", "f hre"),
        ] {
            assert_eq!(words(text).join(" "), expected, "{text}");
        }
        assert_eq!(words(&"a".repeat(MAX_TEXT * 2)), ["a".repeat(MAX_TEXT)]);
    }

    #[test]
    fn texts_have_their_meaning() {
        use Meaning::{Busy, Failure, Good, NotGood, Stopped};
        assert!(FAILURE.is_sorted() && GOOD.is_sorted());
        for (text, expected) in [
            ("ReconcileError", Some(Failure)),
            ("InfrastructureProvisioningFailed", Some(Failure)),
            ("TokenNotFound", Some(Failure)),
            ("does not exist", Some(Failure)),
            ("Unable to create required cluster objects", Some(Failure)),
            ("Failing over", Some(Failure)),
            ("failover", None),
            ("paused", Some(Stopped)),
            ("HIBERNATED", Some(Stopped)),
            ("Creating", Some(Busy)),
            ("Waiting for Pods to be ready", Some(Busy)),
            ("ImportInProgress", Some(Busy)),
            ("NotReady", Some(NotGood)),
            ("ClusterIsNotReady", Some(NotGood)),
            ("Cluster in healthy state", Some(Good)),
            ("NoErrors", None),
            ("completed without errors", Some(Good)),
            ("RUNNING", Some(Good)),
            ("", None),
            ("Latest", None),
        ] {
            assert_eq!(meaning(text), expected, "{text}");
        }
    }
}
