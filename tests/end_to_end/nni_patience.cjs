// NNI's manager gives the tuner ten seconds to connect, which a busy machine exceeds. No setting
// changes them, so this module, loaded before the manager, does.
const timer = globalThis.setTimeout;
globalThis.setTimeout = Object.assign(
  (call, milliseconds, ...rest) => timer(call, milliseconds === 10000 ? 600000 : milliseconds, ...rest),
  timer,
);
