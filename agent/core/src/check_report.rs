//! The lines of `agentk check`, to which the core and the features write their steps.

use std::{
    fmt::Display,
    io::{self, Write},
};

/// The remedy if agentk may not ask for its rights.
pub const REVIEW_HINT: &str =
    "agentk's user needs the role system:basic-user, which all users have by default";

/// The error of one step, and a remedy.
pub struct StepError {
    step: &'static str,
    error: String,
    hint: &'static str,
}

/// Returns a function that turns an error into that of a step.
pub fn failed<E: Display>(step: &'static str, hint: &'static str) -> impl FnOnce(E) -> StepError {
    move |error| StepError { step, error: error.to_string(), hint }
}

/// The lines that are written.
pub struct CheckReport<'a> {
    out: &'a mut dyn Write,
    /// The subject of the next steps: kas, the cluster, a service, or the policy.
    subject: String,
    /// True until a step fails.
    ok: bool,
    /// Roles that are printed at the end.
    missing_roles: String,
    written: io::Result<()>,
}

impl<'a> CheckReport<'a> {
    /// Returns a report without lines.
    pub fn new(out: &'a mut dyn Write) -> Self {
        Self { out, subject: String::new(), ok: true, missing_roles: String::new(), written: Ok(()) }
    }

    /// Sets the subject of the next steps.
    pub fn set_subject(&mut self, subject: impl Into<String>) {
        self.subject = subject.into();
    }

    /// Writes a step that succeeded.
    pub fn ok(&mut self, step: &str, what: impl Display) {
        self.line(step, "ok", what);
    }

    /// Writes a step that shows a limit of this agentk, which may be intended.
    pub fn warning(&mut self, step: &str, what: impl Display) {
        self.line(step, "warning", what);
    }

    /// Writes a step that failed.
    pub fn failed(&mut self, step: &str, what: impl Display) {
        self.ok = false;
        self.line(step, "FAILED", what);
    }

    /// Adds Roles that are missing.
    pub fn add_missing_roles(&mut self, roles: &str) {
        self.missing_roles += roles;
    }

    /// Ends the steps of a subject, whose first error is its last step.
    pub fn end(&mut self, result: Result<(), StepError>) {
        if let Err(StepError { step, error, hint }) = result {
            self.failed(step, format_args!("{error}: {hint}"));
        }
    }

    /// Writes the Roles that are missing. Returns true if no step failed.
    pub fn finish(mut self) -> io::Result<bool> {
        if !self.missing_roles.is_empty() {
            let head = "\nThese roles are missing. Bind them to the service account that is named above:";
            let written = writeln!(self.out, "{head}\n{}", self.missing_roles);
            self.written = self.written.and(written);
        }
        self.written.map(|()| self.ok)
    }

    fn line(&mut self, step: &str, result: &str, what: impl Display) {
        let name = format!("{}: {step}", self.subject);
        let written = writeln!(self.out, "{name:<24} {result:<7} {what}").and_then(|()| self.out.flush());
        if self.written.is_ok() {
            self.written = written;
        }
    }
}
