//! What the owner of a cluster lets through, whatever kas asks for: `--policy-file`.
//!
//! ```text
//!   request ──► request: what of the API? ─┐
//!           ──► actor: as whom?  ──────────┴─► rules, the first that is about it ──► guard: count, log, pass or 403
//!   file, whenever it changes ──► file: strict, or the last good one stays ──────────────┤
//!   what is in flight and refused by now ──► permit: withdrawn, the stream ends ◄─────────┘
//! ```
//!
//! Nothing that a policy refuses is sent to the cluster. RBAC stays the second lock: it judges what passes here. The
//! semantics are written down in `docs/policy.md`.

pub mod actor;
mod file;
mod guard;
mod permit;
pub mod request;
mod rule;

use http::Request;
use proto::ServiceName;

pub(crate) use self::permit::Permit;
use self::{
    actor::Actor,
    request::{Asked, Unclear},
};
pub use self::{
    guard::Guard,
    rule::{Action, Rule},
};

/// What metrics and logs call the absence of a rule.
const DEFAULT: &str = "default";
/// What they call a request that cannot be judged.
const UNCLEAR: &str = "unclear";

/// Rules in order, and whether they count.
#[derive(Clone, Debug)]
pub struct Policy {
    mode: Mode,
    rules: Vec<Rule>,
}

/// What becomes of a request that is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// It is.
    #[default]
    Enforce,
    /// It passes, is logged and counted.
    DryRun,
}

/// What a policy says of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it may pass.
    pub allowed: bool,
    /// Which rule says so.
    pub by: By,
    /// The request, in words.
    pub what: String,
}

/// Where a verdict comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The rule of this number, from 0.
    Rule(usize),
    /// No rule is about the request.
    Default,
    /// The request cannot be judged.
    Unclear(Unclear),
}

impl Policy {
    /// Whether it counts.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The rules, in order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Judges a request for a service. Only Kubernetes has more to judge than the service's name.
    pub fn judge<B>(&self, service: &str, request: &Request<B>) -> Verdict {
        if service != ServiceName::KUBERNETES {
            let what = format!("{} {} of {service}", request.method(), request.uri().path());
            return self.verdict(what, |rule| rule.is_for(service));
        }

        let read = request::read(request.method(), request.uri());
        match read.and_then(|asked| Ok((asked, Actor::of(request.headers())?))) {
            Ok((asked, actor)) => self.verdict(describe(&asked, &actor), |rule| {
                rule.is_for(service) && rule.is_about(&asked, &actor)
            }),
            Err(unclear) => {
                let what = format!("{} {}", request.method(), request.uri().path());
                Verdict { allowed: false, by: By::Unclear(unclear), what }
            }
        }
    }

    fn verdict(&self, what: String, is_about: impl Fn(&Rule) -> bool) -> Verdict {
        match self.rules.iter().position(is_about) {
            Some(number) => {
                let allowed = self.rules[number].action == Action::Allow;
                Verdict { allowed, by: By::Rule(number), what }
            }
            None => Verdict { allowed: false, by: By::Default, what },
        }
    }

    /// The rule's name in metrics and logs.
    pub fn name_of(&self, by: By) -> &str {
        match by {
            By::Rule(number) => self.rules[number].name(),
            By::Default => DEFAULT,
            By::Unclear(_) => UNCLEAR,
        }
    }
}

fn describe(asked: &Asked, actor: &Actor<'_>) -> String {
    match actor {
        Actor::Agentk => asked.to_string(),
        actor => format!("{asked} {actor}"),
    }
}

#[cfg(test)]
mod tests;
