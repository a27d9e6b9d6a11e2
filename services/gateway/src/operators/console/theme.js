// Light or dark before anything is drawn, so that no page flashes: that is why it is a file of its
// own and no module. `theme` is what the button in the bar turns.
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
        // A browser that keeps nothing forgets it with the page.
      }
      return next;
    },
  };
})();
