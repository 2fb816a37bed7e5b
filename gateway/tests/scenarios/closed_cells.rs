//! Attacks of the kind "caller A, agent B, service C": each cell of the table of docs/access.md that must be closed is refused at each
//! listener, with the status and the message of its cause, and no agent receives the request. One kas serves all of them.
//!
//! The same requests of other callers succeed, so that a kas that refuses everything fails.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod doors;
mod setup;
mod sources;
mod table;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    time::Duration,
};

use http::Response;
use hyper::body::Incoming;
use kas_testing::world::text;
use tokio::time::sleep;

use self::{
    setup::Setup,
    table::{
        AGENTS_THAT_ARE_AWAY, OTHER_AGENTS, OWN_AGENTS, REFUSED_BY_GITLAB, REFUSED_CREDENTIALS, RIGHTS,
        Refusal, Row,
    },
};

/// The least number of closed cells.
const ATTACKS: usize = 240;

/// The cells that were tried.
struct Attack {
    setup: Setup,
    closed: BTreeSet<String>,
    /// The open cells, each with the callers that have it.
    open: BTreeMap<(&'static str, &'static str), BTreeSet<&'static str>>,
    failures: String,
}

impl Attack {
    /// Tries each cell of a row.
    async fn try_row(&mut self, row: &Row) {
        let marks: Vec<char> = row.rights.chars().filter(|mark| *mark != ' ').collect();
        assert_eq!(marks.len(), RIGHTS.len(), "{} at {}", row.caller, row.agent);
        for (mark, (right, method, path)) in marks.into_iter().zip(RIGHTS) {
            let path = format!("/agents/{}/{path}", row.agent);
            let before = self.setup.received();
            let response = match mark {
                '.' => continue,
                _ => self.setup.send(row.caller, method, &path).await,
            };
            let cell = format!("{} at {}: {right}", row.caller, row.agent);
            if mark == '+' {
                self.open.entry((row.agent, right)).or_default().insert(row.caller);
                self.check_open(&cell, right, before, response).await;
            } else {
                self.check_closed(cell, row.refusal.of(right), before, response).await;
            }
        }
    }

    /// Checks that kas has refused a request, and that no agent has received it.
    async fn check_closed(
        &mut self,
        cell: String,
        refusal: Refusal,
        before: usize,
        response: Response<Incoming>,
    ) {
        let status = response.status().as_u16();
        let error =
            response.headers().get("kas-error").map_or("", |error| error.to_str().unwrap()).to_owned();
        let body = text(response).await;
        let is_right = (status, &*error) == (refusal.status, refusal.error) && body.contains(refusal.message);
        let reached = self.setup.received() - before;
        if !is_right || reached > 0 {
            let Refusal { status: expected, error: name, message, .. } = refusal;
            writeln!(
                self.failures,
                "{cell}: {status} {error:?}, not {expected} {name:?} with {message:?}; agents received {reached}: {body}"
            )
            .unwrap();
        }
        assert!(self.closed.insert(cell.clone()), "{cell} was tried twice");
    }

    /// Checks that an agent, or kas for it, has answered.
    async fn check_open(&mut self, cell: &str, right: &str, before: usize, response: Response<Incoming>) {
        let status = response.status().as_u16();
        let body = text(response).await;
        // kas answers for events by itself.
        let is_answered = right == "events read" || self.setup.received() == before + 1;
        if status != 200 || !is_answered {
            writeln!(self.failures, "{cell}: {status}, not 200; answered by an agent: {is_answered}: {body}")
                .unwrap();
        }
    }

    /// Checks that each right is open at each of these agents, for callers whose requests are the same.
    fn check_neighbours(&self) {
        for agent in ["prod", "7"] {
            for (right, ..) in RIGHTS {
                let neighbours = self.open.get(&(agent, right));
                assert!(
                    neighbours.is_some_and(|callers| !callers.is_empty()),
                    "{right} at {agent} is open to nobody"
                );
            }
        }
        let has_open_cell = |caller: &str| self.open.values().any(|callers| callers.contains(caller));
        for row in OWN_AGENTS {
            assert!(has_open_cell(row.caller), "{} has no open cell", row.caller);
        }
    }
}

/// Each cell of the credentials that are refused everywhere, or at an agent of GitLab.
fn refused_everywhere() -> Vec<Row> {
    let row = |caller, agent, refusal| Row { caller, agent, rights: "---- ---- ----", refusal };
    let all = REFUSED_CREDENTIALS
        .iter()
        .flat_map(|(caller, refusal)| ["prod", "7"].map(|agent| row(*caller, agent, *refusal)));
    all.chain(REFUSED_BY_GITLAB.iter().map(|(caller, refusal)| row(*caller, "7", *refusal))).collect()
}

#[tokio::test(start_paused = true)]
async fn attack_122_each_closed_cell_of_caller_agent_and_service_is_refused() {
    let setup = Setup::new().await;
    for caller in ["revoked token", "ended session of the page", "expired session of the page"] {
        let agent = if caller == "ended session of the page" { "7" } else { "prod" };
        let response = setup.send(caller, "GET", &format!("/agents/{agent}/kubernetes/api/v1/pods")).await;
        assert_eq!(response.status(), 200, "{caller} before");
    }
    setup.revoke();
    assert_eq!(setup.send("ended session of the page", "DELETE", "/web/v1/session").await.status(), 204);
    // The session of a token ends with it.
    sleep(Duration::from_secs(61)).await;

    let mut attack =
        Attack { setup, closed: BTreeSet::new(), open: BTreeMap::new(), failures: String::new() };
    let refused = refused_everywhere();
    for row in OWN_AGENTS.iter().chain(OTHER_AGENTS).chain(AGENTS_THAT_ARE_AWAY).chain(&refused) {
        attack.try_row(row).await;
    }
    let of_agents = attack.closed.len();
    doors::attack(&mut attack).await;
    attack.check_neighbours();
    attack.setup.assert_no_violations();
    assert!(attack.failures.is_empty(), "\n{}", attack.failures);
    println!("{} closed cells were refused, of which {of_agents} at agents", attack.closed.len());
    assert!(of_agents >= ATTACKS, "{of_agents}");
}
