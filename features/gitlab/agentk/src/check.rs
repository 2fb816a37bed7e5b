//! The steps of a check at GitLab's kas.

use agentk_core::{
    DialError,
    check_report::{CheckReport, StepError, failed},
    connect::{GitLabStream, KasTarget},
};

use super::{connection::GitLabConnection, context::anonymous_registration};

const REGISTRATION_HINT: &str =
    "check that the address is that of GitLab's kas for agents, and read the log of kas";
const TOKEN_HINT: &str = "create another token of the agent in GitLab (Operate > Kubernetes clusters), and put it into the token file";

/// Registers this process at GitLab's kas, as a running agentk does. Opens no stream, so that kas sends no request of a caller.
pub async fn check(
    target: KasTarget<'_>,
    stream: GitLabStream,
    report: &mut CheckReport<'_>,
) -> Result<(), StepError> {
    let server = match &stream.server {
        Some(server) => format!("GitLab's kas ({server})"),
        None => "GitLab's kas".to_owned(),
    };
    if !target.kas.is_grpc() {
        report.ok("upgrade", format!("{server} accepts WebSockets here; the protocol is gRPC"));
    }
    let GitLabStream { io, authorization, .. } = stream;
    let registration = anonymous_registration();
    let opened = GitLabConnection::open(io, target, &authorization, registration).await;
    let connection = match opened {
        Ok(connection) => connection,
        Err(error @ DialError::Unauthorized { .. }) => {
            report.ok("gRPC", format!("{server} answers, and requires an agent token"));
            return Err(failed("authentication", TOKEN_HINT)(error));
        }
        Err(error) => return Err(failed("gRPC", REGISTRATION_HINT)(error)),
    };
    report.ok("gRPC", format!("{server} answers"));
    report.ok("authentication", format!("{} is accepted", target.token));
    connection.close().await;
    Ok(())
}
