// Before the first paint, so that nothing flashes in the wrong colours.
(function () {
  var settings = {};
  try {
    settings = JSON.parse(localStorage.getItem('runqy-settings') || '{}') || {};
  } catch (_) {}
  var dark = settings.theme === 'dark' ||
    (settings.theme !== 'light' && matchMedia('(prefers-color-scheme: dark)').matches);
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  document.documentElement.dataset.density = settings.viewDensity === 'compact' ? 'compact' : 'comfortable';
})();
