type Undo = void | undefined | (() => void);
export declare const useState: <T>(first: T | (() => T)) => [T, (next: T | ((before: T) => T)) => void];
export declare const useRef: <T>(first: T) => { current: T };
export declare const useMemo: <T>(make: () => T, on: readonly unknown[]) => T;
export declare const useEffect: (act: () => Undo, on?: readonly unknown[]) => void;
export declare const useLayoutEffect: (act: () => Undo, on?: readonly unknown[]) => void;
