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
mod layer;
mod permit;
pub mod request;
mod rule;

use http::Request;
use proto::ServiceName;

use self::{
    actor::Actor,
    request::{Asked, Unclear},
};
pub use self::{
    guard::Guard,
    rule::{Action, Rule},
};
pub(crate) use self::{layer::PolicyLayer, permit::Permit};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it may pass.
    pub allowed: bool,
    /// Which rule says so.
    pub by: By,
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
            return self.verdict(|rule| rule.is_for(service));
        }

        let judged = understood(request, |asked, actor| {
            self.verdict(|rule| rule.is_for(service) && rule.is_about(asked, actor))
        });
        judged.unwrap_or_else(|unclear| Verdict { allowed: false, by: By::Unclear(unclear) })
    }

    fn verdict(&self, is_about: impl Fn(&Rule) -> bool) -> Verdict {
        match self.rules.iter().position(is_about) {
            Some(number) => {
                let allowed = self.rules[number].action == Action::Allow;
                Verdict { allowed, by: By::Rule(number) }
            }
            None => Verdict { allowed: false, by: By::Default },
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

/// A request in words, as far as it is understood. Words cost more than a verdict, and few verdicts need any.
pub fn describe<B>(service: &str, request: &Request<B>) -> String {
    let (method, path) = (request.method(), request.uri().path());
    if service != ServiceName::KUBERNETES {
        return format!("{method} {path} of {service}");
    }

    let described = understood(request, |asked, actor| match actor {
        Actor::Agentk => asked.to_string(),
        actor => format!("{asked} {actor}"),
    });
    described.unwrap_or_else(|_| format!("{method} {path}"))
}

fn understood<B, T>(
    request: &Request<B>,
    then: impl FnOnce(&Asked<'_>, &Actor<'_>) -> T,
) -> Result<T, Unclear> {
    let path = request::Path::of(request.uri())?;
    let asked = request::read(request.method(), &path, request.uri().query())?;
    let actor = Actor::of(request.headers())?;
    Ok(then(&asked, &actor))
}

#[cfg(test)]
mod tests;
