// The first text stands until Streamlit has drawn the same: each block until its own place is filled, all of it until
// the page's script has ended.
(() => {
  const app = '[data-testid="stApp"]', main = '[data-testid="stAppViewContainer"]';
  const chosen = {'"Light"': 'light', '"Dark"': 'dark'}[localStorage.getItem(`stActiveTheme-${location.pathname}-v2`)];
  document.documentElement.dataset.first = chosen ?? (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
  const look = () => {
    const text = document.getElementById('pinscope-first');
    if (!text) return;
    const drawn = selector => document.querySelector(`${main} ${selector}`);
    if (drawn('[data-testid="stMain"]')) text.setAttribute('role', 'none'); // a page has one main landmark
    for (const block of text.querySelectorAll('[data-until]')) {
      if (!drawn(block.dataset.until)) continue;
      const room = document.createElement('div');
      room.style.height = `${block.offsetHeight}px`;
      room.className = block.className;
      block.replaceWith(room);
    }
    const ended = drawn('[data-testid="stHeading"]') && document.querySelector(`${app}[data-test-script-state="notRunning"]`);
    if (ended || drawn('[data-testid="stException"]') || document.querySelector('[role="dialog"]') || !text.querySelector('[data-until]')) {
      text.remove();
      watcher.disconnect();
    }
  };
  const watcher = new MutationObserver(look);
  addEventListener('DOMContentLoaded', () => watcher.observe(document.body,
    {childList: true, subtree: true, attributes: true, attributeFilter: ['data-test-script-state']}));
})();
