import java.lang.reflect.Array;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import sun.reflect.ReflectionFactory;

/**
 * A deep copy of a ScienceWorld simulator and its random generator, field by field.
 *
 * What can't change is shared: strings, boxed values, and Scala's singletons, which are the program's
 * and not the world's. Of Java's own classes only those of the generator are known to be safe to copy;
 * any other, and what has no class of its own (a lambda), is refused.
 *
 * Rebuild: see docs/sciworld.md.
 */
public final class WorldCopy {
    private static final List<String> COPIED = List.of("java.util.Random", "java.util.concurrent.atomic.AtomicLong");
    private static final List<String> SHARED = List.of("Boolean", "Byte", "Character", "Class", "Double", "Float",
            "Integer", "Long", "Short", "String");
    private static final Map<String, Kind> KINDS = new HashMap<>();

    private final List<Kind> met = new ArrayList<>();
    private final ArrayDeque<Object> pairs = new ArrayDeque<>();

    private WorldCopy() {}

    /** Copies of both, which share with the originals only what can't change. */
    public static synchronized Object[] copy(Object simulator, Object generator) throws ReflectiveOperationException {
        WorldCopy copier = new WorldCopy();
        try {
            Object[] twins = {copier.twin(simulator), copier.twin(generator)};
            while (!copier.pairs.isEmpty()) {
                copier.fill(copier.pairs.pop(), copier.pairs.pop());
            }
            return twins;
        } finally {
            copier.met.forEach(Kind::forget);
        }
    }

    /** The copy of an object, made at its first mention and filled later: a graph may be deep. */
    private Object twin(Object original) throws ReflectiveOperationException {
        if (original == null) {
            return null;
        }
        Kind kind = kind(original.getClass());
        if (kind.shared || kind.singleton == original) {
            return original;
        }
        Object twin = kind.find(original);
        if (twin == null) {
            twin = kind.make(original);
            if (kind.size == 0) {
                met.add(kind);
            }
            kind.add(original, twin);
            pairs.push(original);
            pairs.push(twin);
        }
        return twin;
    }

    private void fill(Object twin, Object original) throws ReflectiveOperationException {
        Kind kind = kind(original.getClass());
        for (Field field : kind.values) {
            field.set(twin, field.get(original));
        }
        for (Field field : kind.references) {
            field.set(twin, twin(field.get(original)));
        }
        if (original instanceof Object[]) {
            Object[] from = (Object[]) original;
            for (int i = 0; i < from.length; i++) {
                ((Object[]) twin)[i] = twin(from[i]);
            }
        }
    }

    private static Kind kind(Class<?> type) throws ReflectiveOperationException {
        Kind kind = KINDS.get(type.getName());
        if (kind == null) {
            kind = new Kind(type);
            KINDS.put(type.getName(), kind);
        }
        return kind;
    }

    /**
     * What is to be known of a class, and the copies of its objects that have been made.
     *
     * They are searched one after another, newest first: no table can be made by identity, as the
     * simulator is run with a constant identity hash.
     */
    private static final class Kind {
        final boolean shared;
        final List<Field> values = new ArrayList<>();
        final List<Field> references = new ArrayList<>();
        Object singleton;
        int size;
        private Class<?> element;
        private Constructor<?> constructor;
        private Object[] originals = {};
        private Object[] twins = {};

        Kind(Class<?> type) throws ReflectiveOperationException {
            String name = type.getName();
            shared = name.startsWith("java.lang.") && SHARED.contains(name.substring("java.lang.".length()));
            if (shared) {
                return;
            }
            if (type.isArray()) {
                element = type.getComponentType();
                return;
            }
            boolean javas = type.getClassLoader() != WorldCopy.class.getClassLoader();
            if (name.indexOf('/') >= 0 || type.isSynthetic() || javas && !COPIED.contains(name)) {
                throw new UnsupportedOperationException("a " + name + " can't be copied");
            }
            constructor = ReflectionFactory.getReflectionFactory()
                    .newConstructorForSerialization(type, Object.class.getDeclaredConstructor());
            for (Class<?> part = type; part != null; part = part.getSuperclass()) {
                for (Field field : part.getDeclaredFields()) {
                    addField(field, part == type);
                }
            }
        }

        private void addField(Field field, boolean own) throws IllegalAccessException {
            if (!Modifier.isStatic(field.getModifiers())) {
                field.setAccessible(true);
                (field.getType().isPrimitive() ? values : references).add(field);
            } else if (own && field.getName().equals("MODULE$")) {
                singleton = field.get(null);
            }
        }

        Object make(Object original) throws ReflectiveOperationException {
            if (element == null) {
                return constructor.newInstance();
            }
            int length = Array.getLength(original);
            Object twin = Array.newInstance(element, length);
            if (element.isPrimitive()) {
                System.arraycopy(original, 0, twin, 0, length);
            }
            return twin;
        }

        Object find(Object original) {
            for (int i = size - 1; i >= 0; i--) {
                if (originals[i] == original) {
                    return twins[i];
                }
            }
            return null;
        }

        void add(Object original, Object twin) {
            if (size == originals.length) {
                originals = Arrays.copyOf(originals, 2 * size + 8);
                twins = Arrays.copyOf(twins, 2 * size + 8);
            }
            originals[size] = original;
            twins[size++] = twin;
        }

        void forget() {
            originals = twins = new Object[0];
            size = 0;
        }
    }
}
