/** Where one can go: path below the root, name, key after `g`. */
export interface Place {
  path: string;
  name: string;
  key: string;
  /** a path of an icon, 24 by 24 */
  icon: string;
  adminOnly?: boolean;
}

export const PLACES: Place[] = [
  { path: '/', name: 'Overview', key: 'o', icon: 'M4 13h6V4H4zM14 20h6V4h-6zM4 20h6v-4H4z' },
  { path: '/queues', name: 'Queues', key: 'q', icon: 'M4 6h16M4 12h11M4 18h6' },
  { path: '/search', name: 'Tasks', key: 't', icon: 'M10 4a6 6 0 1 0 0 12 6 6 0 0 0 0-12zM15 15l5 5' },
  { path: '/errors', name: 'Errors', key: 'e', icon: 'M12 4l9 16H3zM12 10v4M12 17v.5' },
  { path: '/workers', name: 'Workers', key: 'w', icon: 'M5 5h14v6H5zM5 13h14v6H5zM8 8h.5M8 16h.5' },
  { path: '/playground', name: 'New task', key: 'n', icon: 'M12 5v14M5 12h14' },
  { path: '/vaults', name: 'Vaults', key: 'v', icon: 'M4 5h16v14H4zM12 9a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM7 19v2M17 19v2', adminOnly: true },
  { path: '/changes', name: 'Changes', key: 'h', icon: 'M6 4v10M6 14a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM18 4a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM18 10c0 5-9 2-9 7' },
  { path: '/access', name: 'Access', key: 'a', icon: 'M8 11V8a4 4 0 0 1 8 0v3M6 11h12v9H6z' },
  { path: '/audit', name: 'Audit', key: 'u', icon: 'M6 4h9l3 3v13H6zM9 11h6M9 15h6' },
  { path: '/system', name: 'System', key: 's', icon: 'M4 12h4l2-6 4 12 2-6h4' },
  { path: '/settings', name: 'Settings', key: 'c', icon: 'M5 7h8M17 7h2M5 17h2M11 17h8M15 5v4M9 15v4' }
];
