// Sets the light or dark theme before the first paint, so that no page flashes; therefore a
// separate file and not a module. `theme` is the state of the button in the bar.
(() => {
  const KEY = "faultline.theme";
  const ORDER = ["auto", "light", "dark"];
  const stored = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null;
    }
  };
  const apply = (name) => {
    document.documentElement.dataset.theme = ORDER.includes(name) ? name : "auto";
  };
  apply(stored());
  window.theme = {
    current: () => document.documentElement.dataset.theme,
    turn() {
      const next = ORDER[(ORDER.indexOf(this.current()) + 1) % ORDER.length];
      apply(next);
      try {
        localStorage.setItem(KEY, next);
      } catch {
        // Without storage the choice lasts until the page is closed.
      }
      return next;
    },
  };
})();
