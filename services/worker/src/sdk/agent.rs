//! The trait of an agent, and the offer that registers an agent with the mesh.

use std::{sync::Arc, time::Duration};

use faultline_proto::{
    a2a,
    v1::{self, agent_offer},
};
use futures::future::BoxFuture;

use crate::{
    Context, Error,
    attempt::state::AgentNames,
    sdk::typed::{AgentError, ErrorPolicy},
};

/// The A2A extension under which callers find the full failure record of a task.
const FAILURE_EXTENSION: &str = "https://faultline.dev/a2a/ext/failure/v1";
const TEXT: &str = "text/plain";

/// A user-written agent. One value serves all tasks of its worker, many of them concurrently.
///
/// ```
/// use faultline_worker::{Agent, Context, Error};
///
/// struct Shout;
///
/// impl Agent for Shout {
///     async fn run(&self, cx: &Context) -> Result<(), Error> {
///         cx.artifact("shout", cx.text().to_uppercase()).await
///     }
/// }
/// ```
pub trait Agent: Send + Sync + 'static {
    /// Works on one task. `Ok` completes the task; see [`Error`] for the ways to fail. A panic
    /// fails this task alone.
    fn run(&self, cx: &Context) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Object-safe form of [`Agent`].
pub(crate) trait DynAgent: Send + Sync {
    fn run<'a>(&'a self, cx: &'a Context) -> BoxFuture<'a, Result<(), Error>>;
}

impl<A: Agent> DynAgent for A {
    fn run<'a>(&'a self, cx: &'a Context) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(Agent::run(self, cx))
    }
}

/// An offered agent inside a running worker. Immutable, shared by all its attempts.
pub(crate) struct OfferedAgent {
    pub(crate) names: Arc<AgentNames>,
    pub(crate) may_answer_with_message: bool,
    pub(crate) policy: ErrorPolicy,
    pub(crate) agent: Box<dyn DynAgent>,
}

/// The policy for a task after the loss of its worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnWorkerLost {
    /// Another worker runs the task, from its last checkpoint.
    #[default]
    Retry,
    /// The task fails: a second attempt could do harm.
    Fail,
}

/// An agent with its name, its agent card (the description that callers read) and its policies.
///
/// ```
/// # use faultline_worker::{Agent, Context, Error};
/// # struct Booking;
/// # impl Agent for Booking {
/// #     async fn run(&self, _: &Context) -> Result<(), Error> { Ok(()) }
/// # }
/// use faultline_worker::{Offer, OnWorkerLost, Skill};
///
/// let offer = Offer::new("booking", Booking)
///     .description("Books trains")
///     .skill(Skill::new("book", "Book a train", "Finds a connection and buys it").tag("travel"))
///     .on_worker_lost(OnWorkerLost::Fail);
/// ```
pub struct Offer {
    name: String,
    card: a2a::AgentCard,
    /// Skills of the extended card; without any there is no extended card.
    extended_skills: Vec<a2a::AgentSkill>,
    may_answer_with_message: bool,
    on_worker_lost: OnWorkerLost,
    max_attempts: u32,
    policy: ErrorPolicy,
    timeout: Duration,
    idempotent: bool,
    delivers_stops: bool,
    drill: bool,
    retries: Option<u32>,
    agent: Box<dyn DynAgent>,
}

impl Offer {
    /// Offers `agent` under `name`, which is part of its URL: `[a-z][a-z0-9-]{0,62}`.
    pub fn new(name: impl Into<String>, agent: impl Agent) -> Self {
        let name = name.into();
        let capabilities = a2a::AgentCapabilities {
            streaming: Some(true),
            push_notifications: Some(true),
            ..a2a::AgentCapabilities::default()
        };
        let card = a2a::AgentCard {
            name: name.clone(),
            description: format!("The agent {name}"),
            version: "1.0.0".to_owned(),
            capabilities: Some(capabilities),
            default_input_modes: vec![TEXT.to_owned()],
            default_output_modes: vec![TEXT.to_owned()],
            ..a2a::AgentCard::default()
        };
        let offer = Self {
            name,
            card,
            extended_skills: Vec::new(),
            may_answer_with_message: false,
            on_worker_lost: OnWorkerLost::default(),
            max_attempts: 0,
            policy: ErrorPolicy::default(),
            timeout: Duration::ZERO,
            idempotent: false,
            delivers_stops: false,
            drill: false,
            retries: None,
            agent: Box::new(agent),
        };
        let extension = "Failed tasks carry their whole failure in the metadata";
        offer.extension(FAILURE_EXTENSION, extension, false)
    }

    /// The purpose of the agent, in one sentence.
    pub fn description(mut self, text: impl Into<String>) -> Self {
        self.card.description = text.into();
        self
    }

    /// The version of the agent. Default: `1.0.0`.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.card.version = version.into();
        self
    }

    /// Adds a skill to the card. Without skills, the description becomes the only one.
    pub fn skill(mut self, skill: Skill) -> Self {
        self.card.skills.push(skill.0);
        self
    }

    /// Adds a skill that only callers with credentials can see. The agent then has an extended
    /// card: the public one and these skills.
    pub fn extended_skill(mut self, skill: Skill) -> Self {
        self.extended_skills.push(skill.0);
        self
    }

    /// Whether callers may stream the events of a task. Default: true.
    pub fn streaming(mut self, offered: bool) -> Self {
        self.capabilities().streaming = Some(offered);
        self
    }

    /// Whether callers may register webhooks (push notifications) for a task. Default: true.
    pub fn push_notifications(mut self, offered: bool) -> Self {
        self.capabilities().push_notifications = Some(offered);
        self
    }

    /// Declares an A2A extension that the agent supports. A caller that does not declare a required
    /// extension is rejected.
    pub fn extension(
        mut self,
        uri: impl Into<String>,
        description: impl Into<String>,
        required: bool,
    ) -> Self {
        let uri = uri.into();
        let description = description.into();
        let extension = a2a::AgentExtension { uri, description, required, params: None };
        self.capabilities().extensions.push(extension);
        self
    }

    /// The organization that runs the agent, and its website.
    pub fn provider(mut self, organization: impl Into<String>, url: impl Into<String>) -> Self {
        let organization = organization.into();
        let url = url.into();
        self.card.provider = Some(a2a::AgentProvider { organization, url });
        self
    }

    /// The URL of the agent's documentation.
    pub fn documentation(mut self, url: impl Into<String>) -> Self {
        self.card.documentation_url = Some(url.into());
        self
    }

    /// The URL of the agent's icon.
    pub fn icon(mut self, url: impl Into<String>) -> Self {
        self.card.icon_url = Some(url.into());
        self
    }

    /// Replaces the media types that the agent accepts, `text/plain` by default. A message with a
    /// part of another type is rejected; `image/*` and `*/*` are wildcards.
    pub fn input_modes(mut self, types: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.card.default_input_modes = types.into_iter().map(Into::into).collect();
        self
    }

    /// Replaces the media types that the agent produces, `text/plain` by default.
    pub fn output_modes(mut self, types: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.card.default_output_modes = types.into_iter().map(Into::into).collect();
        self
    }

    /// Adds a media type that the agent accepts.
    pub fn reads(mut self, media_type: impl Into<String>) -> Self {
        self.card.default_input_modes.push(media_type.into());
        self
    }

    /// Adds a media type that the agent produces.
    pub fn writes(mut self, media_type: impl Into<String>) -> Self {
        self.card.default_output_modes.push(media_type.into());
        self
    }

    /// Changes any other field of the card. The gateway fills in the interfaces.
    pub fn card(mut self, change: impl FnOnce(&mut a2a::AgentCard)) -> Self {
        change(&mut self.card);
        self
    }

    /// Lets the agent answer with a bare message instead of a task ([`Context::reply`]). Callers
    /// then receive nothing before the agent's first report, so the agent should report early, at
    /// least with [`Context::start`].
    pub fn may_answer_with_message(mut self) -> Self {
        self.may_answer_with_message = true;
        self
    }

    /// Declares that the agent is idempotent: an attempt that failed with an unknown outcome is
    /// retried as well. Only this call allows such a retry; a caller's `Idempotency-Key` covers the
    /// submission alone.
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// Declares that the work of the agent continues outside the mesh when its worker dies. If such
    /// a task is cancelled while no worker runs it, the next worker receives a task that [delivers
    /// the stop](Context::delivers_stop) and has the checkpoint of the cancelled task.
    pub fn delivers_stops(mut self) -> Self {
        self.delivers_stops = true;
        self
    }

    /// Marks the agent as fault injection. A caller with a token may use it only if the token's
    /// `agents` name it.
    pub fn drill(mut self) -> Self {
        self.drill = true;
        self
    }

    /// Number of retries after a failed attempt. Default: the coordinator's setting.
    pub fn retries(mut self, retries: u32) -> Self {
        self.retries = Some(retries);
        self
    }

    /// The policy for a task after the loss of its worker. Default: retry.
    pub fn on_worker_lost(mut self, policy: OnWorkerLost) -> Self {
        self.on_worker_lost = policy;
        self
    }

    /// Number of attempts in all, including the first. Default: the coordinator's setting.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// Classifies errors of type `E` by their [`AgentError`] implementation, also when `?`
    /// converted them and when they are a source of another error.
    pub fn recognise<E: AgentError + 'static>(mut self) -> Self {
        self.policy.recognise::<E>();
        self
    }

    /// Classifies errors of foreign types. `by` returns the error for the caller, and the original
    /// stays in the log; `None` leaves the error masked. `by` sees only errors without a class.
    ///
    /// ```
    /// # use faultline_worker::{Agent, Context, Error, Offer, reason};
    /// # struct Cache;
    /// # impl Agent for Cache {
    /// #     async fn run(&self, _: &Context) -> Result<(), Error> { Ok(()) }
    /// # }
    /// let offer = Offer::new("cache", Cache).normalise(|error| {
    ///     let io = error.downcast_ref::<std::io::Error>()?;
    ///     let missing = io.kind() == std::io::ErrorKind::NotFound;
    ///     missing.then(|| Error::new(&reason::NOT_FOUND).code("CACHE_MISS"))
    /// });
    /// ```
    pub fn normalise(
        mut self,
        by: impl Fn(&(dyn std::error::Error + 'static)) -> Option<Error> + Send + Sync + 'static,
    ) -> Self {
        self.policy.normalise(Box::new(by));
        self
    }

    /// Limit for the active time of a task: in the queue, running, or waiting for other agents, but
    /// not waiting for humans. After it the task fails and its agent is stopped. Default: no limit,
    /// unless the caller or the operator sets one.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.timeout = time;
        self
    }

    /// The name of the agent.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&mut self) -> &mut a2a::AgentCapabilities {
        self.card.capabilities.get_or_insert_default()
    }

    /// Splits the offer into the part for the coordinator and the part for this worker.
    pub(crate) fn split(mut self, worker: &str) -> (v1::AgentOffer, OfferedAgent) {
        if self.card.skills.is_empty() {
            let skill = Skill::new(&self.name, &self.name, &self.card.description);
            self.card.skills.push(skill.0);
        }
        let extended_card = if self.extended_skills.is_empty() {
            None
        } else {
            self.capabilities().extended_agent_card = Some(true);
            let mut card = self.card.clone();
            card.skills.append(&mut self.extended_skills);
            Some(card)
        };
        let on_worker_lost = match self.on_worker_lost {
            OnWorkerLost::Retry => agent_offer::OnWorkerLost::Retry,
            OnWorkerLost::Fail => agent_offer::OnWorkerLost::Fail,
        };
        let offered = OfferedAgent {
            names: Arc::new(AgentNames { agent: self.name.clone(), worker: worker.to_owned() }),
            may_answer_with_message: self.may_answer_with_message,
            policy: self.policy,
            agent: self.agent,
        };
        let offer = v1::AgentOffer {
            name: self.name,
            card: Some(self.card),
            may_answer_with_message: self.may_answer_with_message,
            on_worker_lost: on_worker_lost as i32,
            max_attempts: self.max_attempts,
            idempotent: self.idempotent,
            delivers_stops: self.delivers_stops,
            drill: self.drill,
            retries: self.retries,
            extended_card,
            timeout_ms: u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX),
        };
        (offer, offered)
    }
}

/// An ability of an agent, as its card lists it.
#[derive(Clone, Debug, PartialEq)]
pub struct Skill(a2a::AgentSkill);

impl Skill {
    pub fn new(
        id: impl Into<String>,
        name: impl Into<String>,
        description: impl Into<String>,
    ) -> Self {
        Self(a2a::AgentSkill {
            id: id.into(),
            name: name.into(),
            description: description.into(),
            ..a2a::AgentSkill::default()
        })
    }

    /// Adds a keyword for search.
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.0.tags.push(tag.into());
        self
    }

    /// Adds an example of a message that the skill understands.
    pub fn example(mut self, text: impl Into<String>) -> Self {
        self.0.examples.push(text.into());
        self
    }

    /// Adds a media type that the skill accepts. Default: those of the agent.
    pub fn reads(mut self, media_type: impl Into<String>) -> Self {
        self.0.input_modes.push(media_type.into());
        self
    }

    /// Adds a media type that the skill produces. Default: those of the agent.
    pub fn writes(mut self, media_type: impl Into<String>) -> Self {
        self.0.output_modes.push(media_type.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Agent for Nothing {
        async fn run(&self, _: &Context) -> Result<(), Error> {
            Ok(())
        }
    }

    #[test]
    fn minimal_offer_has_a_valid_card() {
        let (offer, _) = Offer::new("nothing", Nothing).split("w");
        let card = offer.card.unwrap();
        assert_eq!((card.name.as_str(), card.version.as_str()), ("nothing", "1.0.0"));
        assert!(!card.description.is_empty());
        assert_eq!(card.default_input_modes, ["text/plain"]);
        let capabilities = card.capabilities.unwrap();
        assert_eq!(capabilities.streaming, Some(true));
        assert_eq!(capabilities.push_notifications, Some(true));
        assert_eq!(capabilities.extended_agent_card, None);
        assert_eq!(capabilities.extensions[0].uri, FAILURE_EXTENSION);
        let skill = &card.skills[0];
        assert!(!skill.id.is_empty() && !skill.name.is_empty() && !skill.description.is_empty());
        assert!(card.supported_interfaces.is_empty(), "the gateway's to fill in");
        assert_eq!(offer.extended_card, None);
    }

    #[test]
    fn card_contains_all_settings_of_its_offer() {
        let (offer, _) = Offer::new("nothing", Nothing)
            .streaming(false)
            .push_notifications(false)
            .extension("urn:x", "An extension", true)
            .provider("Acme", "https://acme.example")
            .documentation("https://acme.example/docs")
            .icon("https://acme.example/icon.png")
            .input_modes(["image/*"])
            .output_modes(["text/plain", "image/png"])
            .split("w");
        let card = offer.card.unwrap();
        let capabilities = card.capabilities.unwrap();
        assert_eq!(capabilities.streaming, Some(false));
        assert_eq!(capabilities.push_notifications, Some(false));
        let extension = &capabilities.extensions[1];
        assert_eq!((extension.uri.as_str(), extension.required), ("urn:x", true));
        assert_eq!(card.provider.unwrap().organization, "Acme");
        assert_eq!(card.documentation_url.unwrap(), "https://acme.example/docs");
        assert_eq!(card.icon_url.unwrap(), "https://acme.example/icon.png");
        assert_eq!(card.default_input_modes, ["image/*"]);
        assert_eq!(card.default_output_modes, ["text/plain", "image/png"]);
    }

    #[test]
    fn extended_card_is_the_public_card_with_more_skills() {
        let (offer, _) = Offer::new("nothing", Nothing)
            .extended_skill(Skill::new("secret", "Secret", "Only for some").reads("text/html"))
            .description("Does nothing")
            .split("w");
        let card = offer.card.unwrap();
        let mut extended = offer.extended_card.unwrap();
        assert_eq!(card.capabilities.as_ref().unwrap().extended_agent_card, Some(true));
        let ids: Vec<_> = extended.skills.iter().map(|s| s.id.as_str()).collect();
        assert_eq!(ids, ["nothing", "secret"]);
        assert_eq!(extended.skills[1].input_modes, ["text/html"]);
        extended.skills.pop();
        assert_eq!(extended, card);
    }
}
