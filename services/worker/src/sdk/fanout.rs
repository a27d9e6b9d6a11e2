//! Fan-out: delegates work to several agents at once and continues as soon as enough of them have
//! succeeded. Each branch is a delegation under a key of its own, so that a later attempt finds the
//! same children.

use faultline_chassis::limits;
use faultline_proto::Failure;
use futures::{
    StreamExt,
    future::{BoxFuture, join_all},
    stream::FuturesUnordered,
};

use crate::{Content, Context, Delegated, Delegation, Error, reason, sdk::delegation::Call};

/// Work for several agents, made by [`Context::fanout`]. Awaiting it sends the work to all of them
/// and returns as soon as enough have succeeded, or when all have ended.
///
/// - Enough results: the failures are returned beside the results, and the task keeps them as
///   [tolerated](Context::tolerate). Branches that still run are cancelled.
/// - Too few results: the error is MIN_RESULTS_NOT_MET, which names the end of every branch, and
///   [contains the results](TooFew). No branch is cancelled because another one failed.
///
/// ```
/// # use faultline_worker::{Context, Error};
/// # async fn run(cx: &Context) -> Result<(), Error> {
/// let quotes = cx.fanout("Bern–Basel").to("sbb").to("flix").to("uber").at_least(2).await?;
/// for quote in &quotes.results {
///     cx.artifact(&quote.agent, quote.made.text()).await?;
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is sent until it is awaited"]
pub struct Fanout<'a> {
    cx: &'a Context,
    content: Content,
    branches: Vec<(String, Option<Content>)>,
    key: Option<String>,
    /// Number of results needed; `None`: all.
    required: Option<usize>,
}

/// The result of a fan-out with enough results.
#[derive(Clone, Debug, PartialEq)]
pub struct Fanned {
    /// In the order of the branches.
    pub results: Vec<Branch>,
    /// The agents that failed, in the order of the branches, without cancelled ones.
    pub failures: Vec<(String, Failure)>,
    /// Whether any branch failed.
    pub degraded: bool,
}

/// The error of a fan-out with too few results. `?` converts it to its [`Error`].
#[derive(Debug)]
pub struct TooFew {
    /// MIN_RESULTS_NOT_MET, or an earlier error.
    pub error: Error,
    /// The results, in the order of the branches.
    pub results: Vec<Branch>,
    /// The agents that failed, in the order of the branches.
    pub failures: Vec<(String, Failure)>,
}

impl From<Error> for TooFew {
    fn from(error: Error) -> Self {
        Self { error, results: Vec::new(), failures: Vec::new() }
    }
}

impl From<TooFew> for Error {
    fn from(few: TooFew) -> Self {
        few.error
    }
}

/// The result of one branch.
#[derive(Clone, Debug, PartialEq)]
pub struct Branch {
    /// The name of the agent.
    pub agent: String,
    /// The agent's result.
    pub made: Delegated,
}

impl<'a> Fanout<'a> {
    pub(crate) fn new(cx: &'a Context, content: Content) -> Self {
        Self { cx, content, branches: Vec::new(), key: None, required: None }
    }

    /// Adds an agent. The same agent may be added twice.
    pub fn to(mut self, agent: impl Into<String>) -> Self {
        self.branches.push((agent.into(), None));
        self
    }

    /// Adds an agent with content of its own.
    pub fn to_with(mut self, agent: impl Into<String>, content: impl Into<Content>) -> Self {
        self.branches.push((agent.into(), Some(content.into())));
        self
    }

    /// Names the fan-out within its task, as [`Delegation::key`] names a delegation. Its branches
    /// are `key/0`, `key/1` and so on.
    pub fn key(self, key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    /// Number of results that are enough.
    pub fn at_least(self, results: usize) -> Self {
        Self { required: Some(results), ..self }
    }

    /// The first result is enough.
    pub fn first(self) -> Self {
        self.at_least(1)
    }

    /// All results are needed, which is the default.
    pub fn all(self) -> Self {
        Self { required: None, ..self }
    }

    async fn run(self, key: String) -> Result<Fanned, TooFew> {
        let Self { cx, content, branches, required, .. } = self;
        let required = required.unwrap_or(branches.len());
        check(branches.len(), required)?;
        let agents: Vec<String> = branches.iter().map(|(agent, _)| agent.clone()).collect();
        let branches = branches.into_iter().enumerate().map(|(at, (agent, own))| {
            let content = own.unwrap_or_else(|| content.clone());
            Call::new(Delegation::new(cx, agent, content), format!("{key}/{at}"))
        });
        let calls = branches.collect::<Result<Vec<_>, Error>>()?;
        let released = cx.attempt_state().release_slot();
        let ended = cx.unless_cancelled(run_until_enough(&calls, required)).await??;
        released.reacquire().await.map_err(Error::from)?;
        for call in &calls {
            call.report_superseded().await?;
        }
        ended.into_result(agents, required, cx).await
    }
}

impl<'a> IntoFuture for Fanout<'a> {
    type Output = Result<Fanned, TooFew>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(mut self) -> Self::IntoFuture {
        let given = self.key.take();
        let key = given.unwrap_or_else(|| self.cx.attempt_state().next_delegation("fanout"));
        Box::pin(self.run(key))
    }
}

fn check(asked: usize, required: usize) -> Result<(), Error> {
    let most = limits::FANOUT_BRANCHES_MAX;
    let text = match () {
        () if asked > most => format!("a fan-out asks at most {most} agents, not {asked}"),
        () if required > asked => {
            format!("a fan-out to {asked} agents cannot have {required} results")
        }
        () if required == 0 => "a fan-out needs at least one agent and one result".to_owned(),
        () => return Ok(()),
    };
    Err(Error::new(&reason::INVALID_ARGUMENT).because(text))
}

/// The end of each branch; `None`: cancelled before its end.
struct BranchEnds(Vec<Option<Result<Delegated, Failure>>>);

/// Runs all branches until enough have succeeded, and cancels the rest.
async fn run_until_enough(calls: &[Call<'_>], required: usize) -> Result<BranchEnds, Error> {
    let following = calls.iter().enumerate();
    let mut following: FuturesUnordered<_> = following
        .map(|(at, call)| async move {
            (at, call.run_to_end().await.and_then(|child| call.result(child)))
        })
        .collect();
    let mut ended: Vec<Option<_>> = calls.iter().map(|_| None).collect();
    let mut succeeded = 0;
    while succeeded < required
        && let Some((at, result)) = following.next().await
    {
        ended[at] = match result {
            Ok(made) => {
                succeeded += 1;
                Some(Ok(made))
            }
            // Cancelled by an earlier attempt of this task.
            Err(error) if was_cancelled_by_fanout(&error) => None,
            // Only a stop of this task has no record.
            Err(error) => Some(Err(error.failure().cloned().ok_or(error)?)),
        };
    }
    drop(following);
    let open = calls.iter().zip(&ended).filter(|(_, ended)| ended.is_none());
    join_all(open.map(|(call, _)| call.cancel())).await;
    Ok(BranchEnds(ended))
}

fn was_cancelled_by_fanout(error: &Error) -> bool {
    let cancel = error.failure().and_then(|failure| failure.cancel.as_ref());
    cancel.is_some_and(|cancel| cancel.initiator == "parent")
}

impl BranchEnds {
    async fn into_result(
        self,
        agents: Vec<String>,
        required: usize,
        cx: &Context,
    ) -> Result<Fanned, TooFew> {
        let asked = agents.len();
        let mut results = Vec::new();
        let mut failures = Vec::new();
        for (agent, ended) in agents.into_iter().zip(self.0) {
            match ended {
                Some(Ok(made)) => results.push(Branch { agent, made }),
                Some(Err(failure)) => failures.push((agent, failure)),
                None => {}
            }
        }
        let succeeded = results.len();
        let failed = failures.len();
        cx.attempt_state().metrics.worker.record_fanout(asked, required, succeeded, failed);
        if results.len() < required {
            let branches: Vec<_> = failures.iter().map(|(agent, f)| f.to_branch(agent)).collect();
            let failure = Failure::too_few(required, asked, results.len(), &branches);
            let retryable = failures.iter().all(|(_, failure)| failure.may_retry());
            let error = failure.with_retryable(retryable).into();
            return Err(TooFew { error, results, failures });
        }
        for (_, failure) in &failures {
            cx.tolerate(failure.clone()).await?;
        }
        let degraded = !failures.is_empty();
        Ok(Fanned { results, failures, degraded })
    }
}
